"""Tables and figures of an experiment in the paper's form: each cell shows the paper's number and ours."""

from __future__ import annotations

import csv
import io
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from carl import files
from carl.experiments.jobs import Outcome
from carl.experiments.recipes import MEMORY, SPEED, Cell, Plan
from carl.experiments.scales import Scale

PaperNumber = tuple[float, float | None]  # mean, and deviation where the paper gives one


@dataclass(frozen=True)
class Filled:
    """A cell with what was measured."""

    cell: Cell
    values: tuple[float, ...]  # one a finished seed
    failed: int
    epochs: int | None
    images: int | None
    paper: PaperNumber | None

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def ours(self) -> str:
        if self.mean is None:
            return "failed" if self.failed else "-"
        digits = 2 if self.cell.figure not in (SPEED, MEMORY) else 0
        spread = "" if self.deviation is None else f" ± {self.deviation:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"

    def theirs(self) -> str:
        if self.paper is None:
            return ""
        mean, deviation = self.paper
        return f"{mean:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")


def paper_numbers(name: str) -> tuple[str, dict[tuple[str, str], PaperNumber]]:
    """Where in the paper, and its numbers by row and column."""
    text = resources.files("carl.experiments").joinpath("paper.toml").read_text(encoding="utf-8")
    table: Mapping[str, Any] = tomllib.loads(text).get(name, {})
    numbers: dict[tuple[str, str], PaperNumber] = {}
    for row, values in table.get("rows", {}).items():
        for column, value in zip(table["columns"], values, strict=True):
            numbers[row, column] = (value[0], value[1]) if isinstance(value, list) else (float(value), None)
    return table.get("where", ""), numbers


def fill(plan: Plan, outcomes: Mapping[str, Outcome]) -> list[Filled]:
    _, numbers = paper_numbers(plan.name)
    return [_filled(cell, outcomes, numbers) for cell in plan.cells]


def _filled(cell: Cell, outcomes: Mapping[str, Outcome], numbers: Mapping[tuple[str, str], PaperNumber]) -> Filled:
    found = [outcomes[name] for name in cell.jobs if name in outcomes]
    values = [value for outcome in found if (value := figure_of(outcome, cell.figure)) is not None]
    config = next((outcome["config"] for outcome in found if "config" in outcome), None)
    images = next((outcome["images"] for outcome in found if outcome.get("images")), None)
    return Filled(
        cell,
        tuple(values),
        sum(outcome["state"] == "failed" for outcome in found),
        None if config is None else config["train"]["epochs"],
        images,
        None if cell.paper is None else numbers.get(cell.paper),
    )


def figure_of(outcome: Outcome, figure: str) -> float | None:
    """A number of a finished job: speed, memory in MB, or top-1 accuracy (kNN: 20 neighbours) of a measure."""
    if outcome["state"] != "done":
        return None
    if figure in (SPEED, MEMORY):
        value = outcome.get(figure)
        return None if value is None else value / 1e6 if figure == MEMORY else float(value)
    accuracy = outcome["measures"][figure]["accuracy"]
    shown = accuracy.get("trained") or accuracy["random"]
    return float(shown["20"] if "20" in shown else shown["top-1"])


def random_of(outcome: Outcome, figure: str) -> float | None:
    """The same encoder with random weights, where the protocol measures it too."""
    found = outcome.get("measures", {}).get(figure, {}).get("accuracy", {}).get("random") or {}
    return found.get("20", found.get("top-1"))


def _axes(cells: Sequence[Filled]) -> tuple[list[str], list[str]]:
    return list(dict.fromkeys(f.cell.row for f in cells)), list(dict.fromkeys(f.cell.column for f in cells))


def caption(plan: Plan, scale: Scale, cells: Sequence[Filled]) -> str:
    epochs = sorted({f.epochs for f in cells if f.epochs})
    images = sorted({f.images for f in cells if f.images})
    seeds = sorted({len(f.values) for f in cells if f.values})
    made = f"Ours: {scale.name} scale ({scale.words})"
    if epochs:
        made += f"; {'/'.join(map(str, epochs))} epochs, {'/'.join(f'{n:,}' for n in images)} images"
        made += f", {'/'.join(map(str, seeds))} seed(s)"
    return f"{plan.title} ({plan.section} of the paper). {made}. Each cell: the paper's | ours."


def markdown(plan: Plan, scale: Scale, cells: Sequence[Filled]) -> str:
    rows, columns = _axes(cells)
    at = {(f.cell.row, f.cell.column): f for f in cells}
    lines = [f"# {plan.title}", "", caption(plan, scale, cells), "", f"| | {' | '.join(columns)} |"]
    lines.append("|---|" + "---|" * len(columns))
    for row in rows:
        shown = [_pair(at.get((row, column)), scale) for column in columns]
        lines.append(f"| {row} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def _pair(filled: Filled | None, scale: Scale) -> str:
    """`73.39 ± 0.31 / *45.1*`: ours in italics below the paper's scale, so that it cannot be taken for it."""
    if filled is None:
        return ""
    ours = filled.ours() if scale.name == "paper" or filled.mean is None else f"*{filled.ours()}*"
    return f"{filled.theirs()} / {ours}" if filled.paper is not None else ours


def latex(plan: Plan, scale: Scale, cells: Sequence[Filled]) -> str:
    rows, columns = _axes(cells)
    at = {(f.cell.row, f.cell.column): f for f in cells}
    heads = " & ".join(_tex(column) for column in columns)
    lines = [f"% {caption(plan, scale, cells)}", f"\\begin{{tabular}}{{l{'c' * len(columns)}}}", "\\toprule"]
    lines += [f" & {heads} \\\\", "\\midrule"]
    for row in rows:
        shown = []
        for column in columns:
            text = _pair(at.get((row, column)), scale)
            shown.append(_tex(text).replace("*", "\\textit{", 1).replace("*", "}", 1))
        lines.append(f"{_tex(row)} & {' & '.join(shown)} \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _tex(text: str) -> str:
    return text.replace("%", "\\%").replace("±", "$\\pm$").replace("->", "$\\rightarrow$").replace("_", "\\_")


def comma_separated(plan: Plan, scale: Scale, cells: Sequence[Filled]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ("row", "column", "figure", "paper", "paper_std", "ours", "ours_std", "seeds", "epochs", "images")
    writer.writerow(["experiment", "scale", *names])
    for f in cells:
        mean, deviation = f.paper or (None, None)
        numbers = [mean, deviation, f.mean, f.deviation]
        shown = ["" if value is None else f"{value:.3f}" for value in numbers]
        row = [
            plan.name,
            scale.name,
            f.cell.row,
            f.cell.column,
            f.cell.figure,
            *shown,
            len(f.values),
            f.epochs,
            f.images,
        ]
        writer.writerow(row)
    return text.getvalue()


def health_table(outcomes: Mapping[str, Outcome]) -> str:
    """What became of the prototypes of every CARL run, and when it collapsed, if it did."""
    lines = [
        "| run | verdict | collapsed at epoch | prototypes used | information (nats) | kNN probe |",
        "|---|---|---|---|---|---|",
    ]
    for name, outcome in outcomes.items():
        probes = outcome.get("probes") or []
        if not probes or "used" not in probes[-1]:
            continue
        last = probes[-1]
        count = outcome["config"]["method"].get("prototypes", "?")
        when = outcome["collapsed_at"]
        lines.append(
            f"| {name} | {outcome['verdict']} | {'never' if when is None else f'{when:g}'} | {last['used']} of {count} "
            f"| {last.get('information', float('nan')):.2f} | {last.get('knn', float('nan')):.1f} |"
        )
    return "\n".join(lines) + "\n"


def draw(plan: Plan, scale: Scale, cells: Sequence[Filled], folder: Path) -> None:
    """A figure beside the table, PNG and SVG: the paper's dashed, ours solid, each on its own axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows, columns = _axes([f for f in cells if f.cell.figure not in (SPEED, MEMORY)])
    at = {(f.cell.row, f.cell.column): f for f in cells}
    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for panel, title in zip(panels, ("the paper", f"here, {scale.name} scale"), strict=True):
        panel.set_title(title)
        panel.set_xlabel(plan.chart or "")
        panel.set_ylabel("top-1 accuracy (%)")
    shown = [c for c in columns if any(at.get((r, c)) and at[r, c].paper for r in rows)] or columns
    for row in rows:
        found = [at.get((row, column)) for column in shown]
        theirs = [f.paper[0] if f and f.paper else float("nan") for f in found]
        ours = [f.mean if f and f.mean is not None else float("nan") for f in found]
        errors = [f.deviation if f and f.deviation is not None else 0.0 for f in found]
        panels[0].plot(shown, theirs, "o--", label=row)
        panels[1].errorbar(shown, ours, yerr=errors, fmt="s-", label=row, capsize=3)
    for panel in panels:
        panel.tick_params(axis="x", labelrotation=30 if len(shown) > 3 else 0)
    panels[1].legend(fontsize="small")
    figure.suptitle(f"{plan.title} ({plan.section})")
    for kind in ("png", "svg"):
        with files.atomic_writer(folder / f"{plan.name}.{kind}") as file:
            figure.savefig(file, format=kind, dpi=120)
    pyplot.close(figure)


def write_all(plan: Plan, scale: Scale, outcomes: Mapping[str, Outcome], folder: Path) -> list[Path]:
    """Markdown, LaTeX, CSV and figures of a plan, from whatever is finished."""
    cells = fill(plan, outcomes)
    text = markdown(plan, scale, cells)
    health = health_table(outcomes)
    if health.count("\n") > 2:
        text += f"\n## Health of the prototypes\n\n{health}"
    contents = {"md": text, "tex": latex(plan, scale, cells), "csv": comma_separated(plan, scale, cells)}
    for ending, content in contents.items():
        files.write_text(folder / f"{plan.name}.{ending}", content)
    draw(plan, scale, cells, folder)
    return [folder / f"{plan.name}.{ending}" for ending in (*contents, "png", "svg")]
