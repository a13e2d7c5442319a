"""Tables in the paper's form: each cell shows the paper's number and ours; captions say how they differ."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from carl import files
from carl.reproduction import assignment_cost
from carl.reproduction.cells import WORDS, FilledCell, differences, fill_cells, method_of, ours_in_words
from carl.reproduction.figures import draw, draw_assignment_cost
from carl.reproduction.jobs import Outcome
from carl.reproduction.recipes import CLUSTERING, SPEED, Experiment, Setting
from carl.reproduction.scales import Scale


def _rows_and_columns(cells: Sequence[FilledCell]) -> tuple[list[str], list[str]]:
    return list(dict.fromkeys(f.cell.row for f in cells)), list(dict.fromkeys(f.cell.column for f in cells))


def column_title(column: str, cells: Sequence[FilledCell]) -> str:
    """The paper's title, and the settings of our numbers where they differ or the paper has no number."""
    texts = ours_in_words(column, cells)
    return f"{column} (ours: {', '.join(texts)})" if texts else column


def caption(experiment: Experiment, scale: Scale, cells: Sequence[FilledCell]) -> str:
    """What the table shows, everything that differs from the paper, and where and when it was measured."""
    told: dict[str, list[str]] = {}
    for column in _rows_and_columns(cells)[1]:
        own = {f.cell.row: differences(f) for f in cells if f.cell.column == column and f.settings and f.cell.setting}
        texts = []
        for name in dict.fromkeys([*WORDS, *(name for one in own.values() for name in one)]):
            found = {row: one[name] for row, one in own.items() if name in one and one[name][1] not in row}
            theirs, ours = (" or ".join(dict.fromkeys(pair[side] for pair in found.values())) for side in (0, 1))
            where = f" for {' and '.join(found)}" if len(found) < len(own) else ""
            texts += [f"{ours} (paper: {theirs}){where}"] if found else []
        if texts:
            told.setdefault(", ".join(texts), []).append(column)
    seeds = sorted({f.cell.setting.seeds for f in cells if f.cell.setting is not None and f.paper is not None})
    of_seeds = f" The paper's are of {' or '.join(map(str, seeds))} seed{'s' * (seeds != [1])}." if seeds else ""
    text = (
        f"{experiment.title} ({experiment.section} of the paper). Each cell: the paper's / ours, n seeds, ± standard "
        f"deviation; in italics where ours was not measured as the paper's was.{of_seeds} Ours: {scale.name} scale "
        f"({scale.words})."
    )
    differing = (f"{', '.join(columns)}: {difference}." for difference, columns in told.items())
    return " ".join([text, *differing, *([experiment.note] if experiment.note else []), *_machines_and_dates(cells)])


def _machines_and_dates(cells: Sequence[FilledCell]) -> list[str]:
    """Machines and dates of the runs; a warning if the table compares speeds of different machines."""
    places = sorted({place for f in cells for place in f.measured_on})
    if not places:
        return []
    machines, dates = (dict.fromkeys(place[side] for place in places) for side in (0, 1))
    texts = [f"Measured on {'; '.join(machines)}; {' to '.join(dict.fromkeys((min(dates), max(dates))))}."]
    if len(machines) > 1 and any(f.cell.figure in (SPEED, CLUSTERING) for f in cells):
        texts.append("Speeds of different machines do not compare.")
    return texts


def _table_lines(cells: Sequence[FilledCell], slanted: str, escaped: Callable[[str], str] = str) -> list[list[str]]:
    """The column titles, then the rows; `slanted` is how this format writes `{}` in italics."""
    rows, columns = _rows_and_columns(cells)
    at = {(f.cell.row, f.cell.column): f for f in cells}

    def pair(row: str, column: str) -> str:
        f = at.get((row, column))
        if f is None:
            return ""
        ours = escaped(f.ours())
        if f.mean is not None and not f.as_in_the_paper:
            ours = slanted.replace("{}", ours)
        return " / ".join(filter(None, (escaped(f.theirs()), ours)))

    titles = ["", *(escaped(column_title(column, cells)) for column in columns)]
    return [titles, *([escaped(row), *(pair(row, column) for column in columns)] for row in rows)]


def markdown(experiment: Experiment, scale: Scale, cells: Sequence[FilledCell]) -> str:
    heads, *lines = _table_lines(cells, "*{}*")
    shown = [f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *lines)]
    return "\n".join([f"# {experiment.title}", "", caption(experiment, scale, cells), "", *shown]) + "\n"


def latex(experiment: Experiment, scale: Scale, cells: Sequence[FilledCell]) -> str:
    heads, *lines = _table_lines(cells, "\\textit{{}}", _tex_escaped)
    heads = [_stacked(title) for title in heads]
    shown = [" & ".join(line) + " \\\\" for line in (heads, *lines)]
    return "\n".join(
        [
            "% needs booktabs and graphicx",
            "\\begin{table*}",
            "\\footnotesize",
            "\\setlength{\\tabcolsep}{3pt}",
            f"\\caption{{{_tex_escaped(caption(experiment, scale, cells))}}}",
            f"\\label{{tab:{experiment.name}-{scale.name}}}",
            "\\resizebox{\\ifdim\\width>\\textwidth\\textwidth\\else\\width\\fi}{!}{%",  # no wider than the page
            f"\\begin{{tabular}}{{l{'c' * (len(heads) - 1)}}}",
            "\\toprule", shown[0], "\\midrule", *shown[1:], "\\bottomrule",
            "\\end{tabular}}", "\\end{table*}", "",
        ]
    )  # fmt: skip


def _stacked(title: str) -> str:
    """`a (ours: b, c)` on three lines, so that a table with many columns fits on a page."""
    parts = title.replace(" (ours: ", "\nours: ").removesuffix(")").replace(", ", "\n").split("\n")
    return title if len(parts) == 1 else "\\shortstack{" + " \\\\ ".join(parts) + "}"


def _tex_escaped(text: str) -> str:
    text = re.sub(r"lambda\((\d),(\d)\)", r"$\\lambda_e(\1,\2)$", text)
    for plain, command in (
        ("%", "\\%"), ("&", "\\&"), ("#", "\\#"), ("_", "\\_"), ("±", "$\\pm$"), ("->", "$\\rightarrow$"),
        ("<", "$<$"), (">", "$>$"),
    ):  # fmt: skip
        text = text.replace(plain, command)
    return text


def comma_separated(experiment: Experiment, scale: Scale, cells: Sequence[FilledCell]) -> str:
    """One line per cell, with all settings of the paper's number and of ours."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in fields(Setting)]
    heads = ["experiment", "scale", "row", "column", "figure", "paper", "paper_std"]
    heads += [f"paper_{name}" + "_assumed" * (name == "targets") for name in names]  # which the paper leaves open
    writer.writerow([*heads, "ours", "ours_std", "failed", "as_in_the_paper", *names])
    for f in cells:
        theirs = ["" if value is None else str(value) for value in f.paper or (None, None)]
        ours = ["" if value is None else f"{value:.3f}" for value in (f.mean, f.deviation)]
        writer.writerow(
            [experiment.name, scale.name, f.cell.row, f.cell.column, f.cell.figure, *theirs]
            + [_setting_values([f.cell.setting] if f.cell.setting else [], name) for name in names]
            + [*ours, f.failed, "yes" if f.as_in_the_paper else "no"]
            + [_setting_values(f.settings, name) for name in names]
        )
    return text.getvalue()


def _setting_values(settings: Sequence[Setting], name: str) -> str:
    values = [getattr(setting, name) for setting in settings]
    if name == "stated":
        values = ["; ".join(f"{key}={value}" for key, value in stated) for stated in values]
    return " | ".join(dict.fromkeys("" if value is None else str(value) for value in values))


def health_table(experiment: Experiment, outcomes: Mapping[str, Outcome]) -> str:
    """For each run with prototypes what became of them, when it collapsed if it did, and its first cell."""
    lines = [
        "| run | in the table | the paper's / ours | verdict | collapsed at epoch | prototypes used "
        "| information (nats) | kNN probe |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, outcome in outcomes.items():
        probes = outcome.get("probes") or []
        if not probes or "used" not in probes[-1]:
            continue
        last = probes[-1]
        method, config = method_of(outcome)
        count = method.probed_prototypes(config)
        when = outcome["collapsed_at"]
        cell = next(filled for filled in fill_cells(experiment, {name: outcome}) if name in filled.cell.jobs)
        ours = "" if cell.mean is None else f"*{cell.mean:.2f}*"  # one seed: never the paper's
        lines.append(
            f"| {name} | {cell.cell.row}, {cell.cell.column} | {' / '.join(filter(None, (cell.theirs(), ours)))} "
            f"| {outcome['verdict']} | {'never' if when is None else f'{when:g}'} | {last['used']} of {count} "
            f"| {last.get('information', float('nan')):.2f} | {last.get('knn', float('nan')):.1f} |"
        )
    return "\n".join(lines) + "\n"


def write_tables_and_figures(
    experiment: Experiment, scale: Scale, outcomes: Mapping[str, Outcome], folder: Path
) -> list[Path]:
    """Markdown, LaTeX, CSV and figures of an experiment, from whatever is finished."""
    cells = fill_cells(experiment, outcomes)
    text = markdown(experiment, scale, cells)
    health = health_table(experiment, outcomes)
    if health.count("\n") > 2:
        text += f"\n## Health of the prototypes\n\n{health}"
    counts = experiment.prototype_counts
    record = assignment_cost.read_record(folder, scale, counts) if counts else None
    if record is not None:
        text += f"\n## What choosing prototypes costs\n\n{assignment_cost.markdown_table(record)}"
    contents = {"md": text, "tex": latex(experiment, scale, cells), "csv": comma_separated(experiment, scale, cells)}
    for ending, content in contents.items():
        files.write_text(folder / f"{experiment.name}.{ending}", content)
    written = [folder / f"{experiment.name}.{ending}" for ending in contents]
    written += draw(experiment, scale, cells, outcomes, folder)
    return written + (draw_assignment_cost(record, scale, folder) if record is not None else [])
