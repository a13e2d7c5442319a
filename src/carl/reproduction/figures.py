"""Figures of an experiment: the paper's numbers and ours, bars for its tables and curves for its figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from carl import files
from carl.records.known_data import title_of
from carl.records.verdicts import COLLAPSED
from carl.reproduction import assignment_cost
from carl.reproduction.cells import FilledCell, ours_in_words, paper_numbers, random_figure_of
from carl.reproduction.jobs import Outcome
from carl.reproduction.recipes import COSTS, MEMORY, Experiment
from carl.reproduction.scales import Scale

ACCURACY = "top-1 accuracy (%)"
Panel = Any  # matplotlib has no types


def draw(
    experiment: Experiment, scale: Scale, cells: Sequence[FilledCell], outcomes: Mapping[str, Outcome], folder: Path
) -> list[Path]:
    """PNG and SVG; no file where there is nothing to show yet."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    if all(f.mean is None for f in cells):
        return []
    panels = panels_of(experiment, scale, cells, outcomes)
    if not panels:
        return []
    width = 6.4 if len(panels) > 1 else 4 + 0.35 * len([f for f in cells if f.mean is not None or f.paper])
    size = (min(14.0, max(6.0, width) * len(panels)), 4.6)
    figure, axes = pyplot.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        panel(axis)
        _tidy(axis, "x" if experiment.name == "claims" else "y")
    figure.suptitle(
        f"{experiment.title} ({experiment.section} of the paper)\n{_settings_in_words(scale, cells)}", fontsize="medium"
    )
    return _save(figure, experiment.name, folder)


def panels_of(
    experiment: Experiment, scale: Scale, cells: Sequence[FilledCell], outcomes: Mapping[str, Outcome]
) -> list[Callable[[Panel], None]]:
    """For each panel of the figure, what draws it on an axis."""
    drawers = {"prior": _prior, "prototypes": _prototypes, "claims": _claims}
    return drawers.get(experiment.name, _table)(experiment, scale, cells, outcomes)


def _tidy(axis: Panel, grid: str) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis=grid, alpha=0.3)
    axis.set_axisbelow(True)


def _save(figure: Any, name: str, folder: Path) -> list[Path]:
    """PNG and SVG. The same figures give the same file: no date, no random names."""
    import matplotlib
    from matplotlib import pyplot

    written = [folder / f"{name}.{kind}" for kind in ("png", "svg")]
    for path, about in zip(written, (None, {"Date": None}), strict=True):
        with files.atomic_writer(path) as file, matplotlib.rc_context({"svg.hashsalt": name}):
            figure.savefig(file, format=path.suffix[1:], dpi=120, metadata=about)
    pyplot.close(figure)
    return written


def draw_assignment_cost(record: Mapping[str, Any], scale: Scale, folder: Path) -> list[Path]:
    """Seconds per epoch for choosing prototypes: one group of bars per K, PCL's parts on top of each other."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    counts, width = record["counts"], 0.22
    figure, axis = pyplot.subplots(figsize=(7.5, 4.6), layout="constrained")
    for place, parts in enumerate(assignment_cost.BARS):
        below = [0.0] * len(counts)
        xs = [x + (place - (len(assignment_cost.BARS) - 1) / 2) * width for x in range(len(counts))]
        for shade, part in enumerate(parts):
            heights = [record["prototypes"][str(count)][part]["seconds"] for count in counts]
            colour = (*matplotlib.colormaps["tab10"](place)[:3], 1 - 0.3 * shade)
            axis.bar(xs, heights, 0.92 * width, bottom=below, color=colour, label=part)
            below = [low + height for low, height in zip(below, heights, strict=True)]
        for x, height in zip(xs, below, strict=True):
            share = 100 * height / record["encoder_seconds"]
            axis.annotate(f"{share:.1f}%", (x, height), ha="center", va="bottom", fontsize="small")
    axis.set_xticks(range(len(counts)), [f"K = {count:,}" for count in counts])
    axis.set_ylabel("seconds per epoch")
    axis.legend(fontsize="small", frameon=False, loc="upper left")
    _tidy(axis, "y")
    figure.suptitle(
        f"What choosing prototypes costs, beside the encoder's {record['encoder_seconds']:.0f} s (in percent of them)\n"
        f"ours: {scale.name} scale, an epoch of {record['images']:,} images in batches of {record['batch']}",
        fontsize="medium",
    )
    return _save(figure, "choosing", folder)


def _settings_in_words(scale: Scale, cells: Sequence[FilledCell]) -> str:
    """Scale, size and seeds of our numbers, for readers who see only the figure."""
    images = sorted({s.images for f in cells for s in f.settings if s.images})
    seeds = sorted({len(f.values) for f in cells if f.values})
    counts = f"{images[0]:,}" + (f" to {images[-1]:,}" if len(images) > 1 else "") if images else "no"
    many = " or ".join(map(str, seeds)) or "no"
    return f"ours: {scale.name} scale, {counts} training images, {many} seed{'s' * (seeds != [1])}"


def _colours(rows: Sequence[str]) -> dict[str, Any]:
    """One colour per row; a variant, such as the other reading of Eq. 4, has its row's colour halfway to white."""
    from matplotlib import colormaps

    places = {row: place for place, row in enumerate(dict.fromkeys(_main_row(row) for row in rows))}
    plain = {row: colormaps["tab10"](places[_main_row(row)] % 10) for row in rows}
    return {row: c if row == _main_row(row) else tuple((part + 1) / 2 for part in c) for row, c in plain.items()}


def _main_row(row: str) -> str:
    """The row that this one is a variant of: `carl` of `carl, joint targets`."""
    return row.split(", ")[0]


def _of_accuracy(cells: Sequence[FilledCell]) -> list[FilledCell]:
    return [f for f in cells if f.cell.figure not in COSTS]


def _table(
    experiment: Experiment, scale: Scale, cells: Sequence[FilledCell], outcomes: Mapping[str, Outcome]
) -> list[Any]:
    """One panel: one group of bars per column, one bar per row, the paper's numbers as marks on them."""
    shown = [f for f in _of_accuracy(cells) if f.mean is not None or f.paper is not None]
    rows = list(dict.fromkeys(f.cell.row for f in shown))
    columns = list(dict.fromkeys(f.cell.column for f in shown))
    colours, width = _colours(rows), 0.84 / max(1, len(rows))

    def panel(axis: Panel) -> None:
        marked = False
        for f in shown:
            x = columns.index(f.cell.column) + (rows.index(f.cell.row) - (len(rows) - 1) / 2) * width
            if f.mean is not None:
                error = {} if f.deviation is None else {"yerr": f.deviation, "capsize": 2}
                axis.bar(x, f.mean, 0.92 * width, color=colours[f.cell.row], **error)
            if f.paper is not None:
                axis.plot([x], [float(f.paper[0])], "D", color="white", markeredgecolor="black", markersize=4.5)
                marked = True
        axis.set_xticks(range(len(columns)), [_title(column, shown) for column in columns], fontsize="small")
        if len(columns) > 5:
            axis.tick_params(axis="x", labelrotation=20)
        axis.set_ylabel(ACCURACY)
        _draw_random(axis, shown, outcomes)
        alike = all(f.as_in_the_paper for f in shown if f.mean is not None and f.paper is not None)
        marks = ("the paper's" if alike else "the paper's, of its\nown data and epochs") if marked else ""
        _legend(axis, colours, marks, scale)

    return [panel] if shown else []


def _title(column: str, cells: Sequence[FilledCell]) -> str:
    """The column, and below it the settings in which our numbers differ from the paper's."""
    shown = ours_in_words(column, cells, ("data", "judged_on", "epochs", "protocol"))
    return column + ("\nours: " + ",\n".join(shown) if shown else "")


def _draw_random(axis: Panel, cells: Sequence[FilledCell], outcomes: Mapping[str, Outcome]) -> None:
    """A line at the accuracy of the untrained encoders, where that is one number."""
    if any(f.cell.setting is None for f in cells) or len({f.cell.figure for f in cells}) > 1:
        return  # they have a row of their own, or there is one number for each protocol
    found: dict[str, list[float]] = {}
    for f in cells:
        for outcome in (outcomes[name] for name in f.cell.jobs if name in outcomes):
            if (value := random_figure_of(outcome, f.cell.figure)) is not None:
                found.setdefault(outcome["measures"][f.cell.figure]["data"], []).append(value)
    for (data, values), style in zip(found.items(), cycle((":", "-."))):
        label = f"random weights, {title_of(data)}" if len(found) > 1 else "random weights"
        axis.axhline(statistics.fmean(values), color="grey", linestyle=style, linewidth=1.2, label=label)


def _legend(axis: Panel, colours: Mapping[str, Any], marks: str, scale: Scale) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(color=colour, label=row) for row, colour in colours.items()]
    if marks:
        mark = Line2D([], [], marker="D", linestyle="", color="white", markeredgecolor="black", markersize=4.5)
        mark.set_label(marks)
        handles.append(mark)
    handles += [line for line in axis.lines if line.get_label().startswith("random")]
    axis.legend(
        handles=handles,
        title=f"bars: ours, {scale.name} scale",
        fontsize="small",
        title_fontsize="small",
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
    )


def _prior(
    experiment: Experiment, scale: Scale, cells: Sequence[FilledCell], outcomes: Mapping[str, Outcome]
) -> list[Any]:
    """The paper's curves and ours: the same measure if encoders were measured on the way, otherwise the kNN probes."""
    rows = list(dict.fromkeys(f.cell.row for f in cells))
    colours = _colours(rows)

    def theirs(axis: Panel) -> None:
        for row in rows:
            _plot_paper(axis, experiment, row, colours[row])
        axis.set(title="the paper: linear evaluation, STL-10", xlabel=experiment.chart, ylabel=ACCURACY)
        axis.legend(fontsize="small", frameon=False)

    curves, what = {row: _measured_curve(row, cells) for row in rows}, "linear evaluation"
    if not any(curves.values()):
        curves, what = {row: _probe_curve(row, cells, outcomes) for row in rows}, "kNN probe"

    heights = [y for points in curves.values() for _, y in points]
    data = next((title_of(o["data"]) for o in outcomes.values() if o.get("probes")), "")

    def ours(own: Sequence[str], variant: str) -> Any:
        def panel(axis: Panel) -> None:
            from matplotlib.ticker import MaxNLocator

            ends = {row: end for row in own if (end := _collapse(row, cells, outcomes, curves[row])) is not None}
            for row in own:  # in the colours of the paper's panel, which names them
                axis.plot([x for x, _ in curves[row]], [y for _, y in curves[row]], color=colours[_main_row(row)])
            style = {"markeredgecolor": "black", "linestyle": "", "markersize": 9}
            for row, (x, y) in ends.items():
                axis.plot([x], [y], "X", color=colours[_main_row(row)], **style)
            if ends:
                axis.plot([], [], "X", color="white", label="collapsed from here on", **style)
                axis.legend(fontsize="small", frameon=False)
            axis.set(title=f"ours, {scale.name} scale: {what}, {data}\n{variant}".strip(), xlabel=experiment.chart)
            axis.set_ylabel(f"{what}, top-1 (%)")
            margin = 0.05 * (max(heights) - min(heights)) + 0.1
            axis.set_ylim(min(heights) - margin, max(heights) + margin)  # the same in both panels
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))

        return panel

    groups: dict[str, list[str]] = {}
    for row in (row for row in rows if curves[row]):
        groups.setdefault(row.removeprefix(_main_row(row)).removeprefix(", "), []).append(row)
    shown = [theirs] if any(f.paper is not None for f in cells) else []
    return shown + [ours(own, variant) for variant, own in groups.items()]


def _plot_paper(axis: Panel, experiment: Experiment, row: str, colour: Any) -> None:
    """All of the paper's points, also those that this scale leaves out."""
    numbers = {
        int(column): float(mean) for (r, column), (mean, _) in paper_numbers(experiment.name).items() if r == row
    }
    if numbers:
        axis.plot(list(numbers), list(numbers.values()), "o--", color=colour, label=row)


def _collapse(
    row: str, cells: Sequence[FilledCell], outcomes: Mapping[str, Outcome], curve: Sequence[tuple[float, float]]
) -> tuple[float, float] | None:
    """Where on the row's curve the first of its seeds collapsed for good."""
    names = {name for f in cells if f.cell.row == row for name in f.cell.jobs}
    when = [o["collapsed_at"] for name, o in outcomes.items() if name in names and o.get("collapsed_at") is not None]
    return next((point for point in curve if when and point[0] >= min(when)), None)


def _measured_curve(row: str, cells: Sequence[FilledCell]) -> list[tuple[float, float]]:
    """What was measured at the paper's epochs; empty if only the end of training was measured."""
    points = [
        (float(f.settings[0].epochs), f.mean)
        for f in cells
        if f.cell.row == row and f.cell.setting is not None and f.mean is not None
    ]
    return points if len(points) > 1 else []


def _probe_curve(row: str, cells: Sequence[FilledCell], outcomes: Mapping[str, Outcome]) -> list[tuple[float, float]]:
    names = dict.fromkeys(name for f in cells if f.cell.row == row for name in f.cell.jobs)
    found: dict[float, list[float]] = {}
    for name in names:
        for probe in outcomes.get(name, {}).get("probes") or ():
            if "knn" in probe:
                found.setdefault(probe["epoch"], []).append(probe["knn"])
    return [(epoch, statistics.fmean(values)) for epoch, values in sorted(found.items())]


def _prototypes(
    experiment: Experiment, scale: Scale, cells: Sequence[FilledCell], outcomes: Mapping[str, Outcome]
) -> list[Any]:
    """Accuracy over K, on a logarithmic axis as in the paper; the paper's and ours on axes of their own."""
    rows = list(dict.fromkeys(f.cell.row for f in cells))
    colours = _colours(rows)

    def finish(axis: Panel, title: str) -> None:
        axis.set(title=title, xlabel=experiment.chart, ylabel=ACCURACY, xscale="log")
        axis.legend(fontsize="small", frameon=False)

    def theirs(axis: Panel) -> None:
        for row in rows:
            _plot_paper(axis, experiment, row, colours[row])
        finish(axis, "the paper: linear evaluation, 150 epochs")

    def ours(axis: Panel) -> None:
        for row in rows:
            own = [f for f in cells if f.cell.row == row and f.mean is not None]
            counts, means = [_count(f) for f in own], [f.mean for f in own]
            style = "s-" if row == _main_row(row) else "s:"
            axis.plot(counts, means, style, color=colours[row], label=_row_label(row, own))
            for f in own:
                if f.deviation is not None:
                    axis.errorbar(_count(f), f.mean, yerr=f.deviation, color=colours[row], capsize=3)
        lost = [f for f in cells if f.mean is not None and _has_collapsed(f, outcomes)]
        if lost:
            counts, means = [_count(f) for f in lost], [f.mean for f in lost]
            axis.plot(counts, means, "kx", markersize=10, label=COLLAPSED)
        _draw_random(axis, cells, outcomes)
        first = next(f.settings[0] for f in cells if f.settings)
        finish(axis, f"ours, {scale.name} scale: {first.protocol}, {first.epochs} epochs, {first.images:,} images")

    shown = [theirs] if any(f.paper is not None for f in cells) else []
    return shown + ([ours] if any(f.mean is not None for f in cells) else [])


def _count(cell: FilledCell) -> int:
    return int(cell.cell.column.removeprefix("K = "))


def _has_collapsed(cell: FilledCell, outcomes: Mapping[str, Outcome]) -> bool:
    """Whether one of its seeds collapsed for good."""
    return any(outcomes.get(name, {}).get("collapsed_at") is not None for name in cell.cell.jobs)


def _row_label(row: str, cells: Sequence[FilledCell]) -> str:
    """The row's title, with our data where they are not the row's."""
    data = {title_of(s.data) for f in cells for s in f.settings}
    return row if data <= {row.split(",")[0]} else f"{row} (ours: {', '.join(sorted(data))})"


def _claims(
    experiment: Experiment, scale: Scale, cells: Sequence[FilledCell], outcomes: Mapping[str, Outcome]
) -> list[Any]:
    """Panels of bars over the same rows: accuracy and memory. The paper has no numbers for them.

    Speeds are only in the table, because the runs were not timed against each other.
    """
    measured = [f for f in cells if f.mean is not None]
    rows = list(dict.fromkeys(f.cell.row for f in reversed(measured)))  # from below

    def bars(own: Sequence[FilledCell], label: str, named: bool) -> Any:
        def panel(axis: Panel) -> None:
            for f in own:
                error = {} if f.deviation is None else {"xerr": f.deviation, "capsize": 2}
                axis.barh(rows.index(f.cell.row), f.mean, color="tab:blue", **error)
            axis.set_yticks(range(len(rows)), rows if named else [""] * len(rows), fontsize="small")
            axis.set(xlabel=label, title=f"ours, {scale.name} scale", ylim=(-0.6, len(rows) - 0.4))

        return panel

    panels = {
        ACCURACY: _of_accuracy(measured),
        "peak memory (MB)": [f for f in measured if f.cell.figure == MEMORY],
    }
    return [bars(own, label, named=label == ACCURACY) for label, own in panels.items()]
