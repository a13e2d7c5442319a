"""Figures of an experiment: the paper's numbers and ours, bars for its tables and curves for its figures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from carl import files
from carl.experiments.cells import Filled, ours_in_words, paper_numbers
from carl.experiments.jobs import Outcome
from carl.experiments.recipes import COSTS, MEMORY, OF_JOINT, SPEED, Plan
from carl.experiments.scales import TITLES, Scale

ACCURACY = "top-1 accuracy (%)"
Panel = Any  # matplotlib has no types


def draw(
    plan: Plan, scale: Scale, cells: Sequence[Filled], outcomes: Mapping[str, Outcome], folder: Path
) -> list[Path]:
    """PNG and SVG; no file where there is nothing to show yet."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    if all(f.mean is None for f in cells):
        return []
    drawers = {"prior": _prior, "prototypes": _prototypes, "claims": _claims}
    panels = drawers.get(plan.name, _table)(plan, scale, cells, outcomes)
    if not panels:
        return []
    width = 6.4 if len(panels) > 1 else 4 + 0.35 * len([f for f in cells if f.mean is not None or f.paper])
    size = (min(14.0, max(6.0, width) * len(panels)), 4.6)
    figure, axes = pyplot.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        panel(axis)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="x" if plan.name == "claims" else "y", alpha=0.3)
        axis.set_axisbelow(True)
    figure.suptitle(f"{plan.title} ({plan.section} of the paper)\n{_of_ours(scale, cells)}", fontsize="medium")
    written = []
    for kind in ("png", "svg"):
        written.append(folder / f"{plan.name}.{kind}")
        # The same figures give the same file: no date, no random names.
        with files.atomic_writer(written[-1]) as file, matplotlib.rc_context({"svg.hashsalt": plan.name}):
            figure.savefig(file, format=kind, dpi=120, metadata={"Date": None} if kind == "svg" else None)
    pyplot.close(figure)
    return written


def _of_ours(scale: Scale, cells: Sequence[Filled]) -> str:
    """Scale, size and seeds of our numbers, for those who see nothing but the figure."""
    images = sorted({s.images for f in cells for s in f.settings if s.images})
    seeds = sorted({len(f.values) for f in cells if f.values})
    counts = f"{images[0]:,}" + (f" to {images[-1]:,}" if len(images) > 1 else "") if images else "no"
    many = " or ".join(map(str, seeds)) or "no"
    return f"ours: {scale.name} scale, {counts} training images, {many} seed{'s' * (seeds != [1])}"


def _colours(rows: Sequence[str]) -> dict[str, Any]:
    """A colour a row; that of the other reading of Eq. 4 is the same, halfway to white."""
    from matplotlib import colormaps

    places = {row: place for place, row in enumerate(dict.fromkeys(row.removesuffix(OF_JOINT) for row in rows))}
    plain = {row: colormaps["tab10"](places[row.removesuffix(OF_JOINT)] % 10) for row in rows}
    return {row: tuple((part + 1) / 2 for part in c) if row.endswith(OF_JOINT) else c for row, c in plain.items()}


def _line_of(row: str) -> str:
    return ":" if row.endswith(OF_JOINT) else "-"


def _of_accuracy(cells: Sequence[Filled]) -> list[Filled]:
    return [f for f in cells if f.cell.figure not in COSTS]


def _table(plan: Plan, scale: Scale, cells: Sequence[Filled], outcomes: Mapping[str, Outcome]) -> list[Any]:
    """One panel: a group of bars a column, a bar a row, the paper's numbers as marks on them."""
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
        axis.set_xlabel("prototypes" if plan.name == "batch-size" else "")
        axis.set_ylabel(ACCURACY)
        alike = all(f.as_in_the_paper for f in shown if f.mean is not None and f.paper is not None)
        marks = ("the paper's" if alike else "the paper's, of its\nown data and epochs") if marked else ""
        _legend(axis, colours, marks, scale, "batch " if plan.name == "batch-size" else "")

    return [panel] if shown else []


def _title(column: str, cells: Sequence[Filled]) -> str:
    """The column with, below it, what our numbers are of where that is not the paper's."""
    shown = ours_in_words(column, cells, ("data", "judged_on", "epochs", "protocol"))
    return column + ("\nours: " + ",\n".join(shown) if shown else "")


def _legend(axis: Panel, colours: Mapping[str, Any], marks: str, scale: Scale, prefix: str) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(color=colour, label=f"{prefix}{row}") for row, colour in colours.items()]
    if marks:
        mark = Line2D([], [], marker="D", linestyle="", color="white", markeredgecolor="black", markersize=4.5)
        mark.set_label(marks)
        handles.append(mark)
    axis.legend(
        handles=handles,
        title=f"bars: ours, {scale.name} scale",
        fontsize="small",
        title_fontsize="small",
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
    )


def _prior(plan: Plan, scale: Scale, cells: Sequence[Filled], outcomes: Mapping[str, Outcome]) -> list[Any]:
    """The paper's curves, and ours: of the same measure where encoders on the way were measured, else of the probes."""
    rows = list(dict.fromkeys(f.cell.row for f in cells))
    colours = _colours(rows)

    def theirs(axis: Panel) -> None:
        for row in rows:
            _plot_paper(axis, plan, row, colours[row])
        axis.set(title="the paper: linear evaluation, STL-10", xlabel=plan.chart, ylabel=ACCURACY)
        axis.legend(fontsize="small", frameon=False)

    curves, what = {row: _measured_curve(row, cells) for row in rows}, "linear evaluation"
    if not any(curves.values()):
        curves, what = {row: _probe_curve(row, cells, outcomes) for row in rows}, "kNN probe"

    def ours(axis: Panel) -> None:
        from matplotlib.ticker import MaxNLocator

        for row, points in curves.items():
            axis.plot([x for x, _ in points], [y for _, y in points], _line_of(row), color=colours[row], label=row)
        ends = [point for row in rows if (point := _collapse(row, cells, outcomes, curves[row])) is not None]
        if ends:
            axis.plot([x for x, _ in ends], [y for _, y in ends], "kx", label="collapsed from here on")
        axis.legend(fontsize="small", frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        data = next(o["data"] for o in outcomes.values() if o.get("probes"))
        axis.set(title=f"ours, {scale.name} scale: {what}, {TITLES.get(data, data)}", xlabel=plan.chart)
        axis.set_ylabel(f"{what}, top-1 (%)")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))

    shown = [theirs] if any(f.paper is not None for f in cells) else []
    return shown + ([ours] if any(curves.values()) else [])


def _plot_paper(axis: Panel, plan: Plan, row: str, colour: Any) -> None:
    """All of the paper's points, also those that this scale leaves out."""
    numbers = {int(column): float(mean) for (r, column), (mean, _) in paper_numbers(plan.name)[1].items() if r == row}
    if numbers:
        axis.plot(list(numbers), list(numbers.values()), "o--", color=colour, label=row)


def _collapse(
    row: str, cells: Sequence[Filled], outcomes: Mapping[str, Outcome], curve: Sequence[tuple[float, float]]
) -> tuple[float, float] | None:
    """Where on the row's curve the first of its seeds collapsed for good."""
    names = {name for f in cells if f.cell.row == row for name in f.cell.jobs}
    when = [o["collapsed_at"] for name, o in outcomes.items() if name in names and o.get("collapsed_at") is not None]
    return next((point for point in curve if when and point[0] >= min(when)), None)


def _measured_curve(row: str, cells: Sequence[Filled]) -> list[tuple[float, float]]:
    """What was measured at the paper's epochs; none where that is the end of training alone."""
    points = [
        (float(f.settings[0].epochs), f.mean)
        for f in cells
        if f.cell.row == row and f.cell.setting is not None and f.mean is not None
    ]
    return points if len(points) > 1 else []


def _probe_curve(row: str, cells: Sequence[Filled], outcomes: Mapping[str, Outcome]) -> list[tuple[float, float]]:
    names = dict.fromkeys(name for f in cells if f.cell.row == row for name in f.cell.jobs)
    found: dict[float, list[float]] = {}
    for name in names:
        for probe in outcomes.get(name, {}).get("probes") or ():
            if "knn" in probe:
                found.setdefault(probe["epoch"], []).append(probe["knn"])
    return [(epoch, statistics.fmean(values)) for epoch, values in sorted(found.items())]


def _prototypes(plan: Plan, scale: Scale, cells: Sequence[Filled], outcomes: Mapping[str, Outcome]) -> list[Any]:
    """Accuracy over K, on a logarithmic axis as in the paper; the paper's and ours on axes of their own."""
    rows = list(dict.fromkeys(f.cell.row for f in cells))
    colours = _colours(rows)

    def finish(axis: Panel, title: str) -> None:
        axis.set(title=title, xlabel=plan.chart, ylabel=ACCURACY, xscale="log")
        axis.legend(fontsize="small", frameon=False)

    def theirs(axis: Panel) -> None:
        for row in rows:
            _plot_paper(axis, plan, row, colours[row])
        finish(axis, "the paper: linear evaluation, 150 epochs")

    def ours(axis: Panel) -> None:
        for row in rows:
            own = [f for f in cells if f.cell.row == row and f.mean is not None]
            counts, means = [int(f.cell.column) for f in own], [f.mean for f in own]
            axis.plot(counts, means, "s" + _line_of(row), color=colours[row], label=_of_what(row, own))
            for f in own:
                if f.deviation is not None:
                    axis.errorbar(int(f.cell.column), f.mean, yerr=f.deviation, color=colours[row], capsize=3)
        lost = [f for f in cells if f.mean is not None and _lost(f, outcomes)]
        if lost:
            counts, means = [int(f.cell.column) for f in lost], [f.mean for f in lost]
            axis.plot(counts, means, "kx", markersize=10, label="collapsed")
        first = next(f.settings[0] for f in cells if f.settings)
        finish(axis, f"ours, {scale.name} scale: {first.protocol}, {first.epochs} epochs, {first.images:,} images")

    shown = [theirs] if any(f.paper is not None for f in cells) else []
    return shown + ([ours] if any(f.mean is not None for f in cells) else [])


def _lost(cell: Filled, outcomes: Mapping[str, Outcome]) -> bool:
    """Whether a seed of it collapsed for good."""
    return any(outcomes.get(name, {}).get("collapsed_at") is not None for name in cell.cell.jobs)


def _of_what(row: str, cells: Sequence[Filled]) -> str:
    """The row's title, and the data that ours is of where it is another."""
    data = {TITLES.get(s.data, s.data) for f in cells for s in f.settings}
    return row if data <= {row.split(",")[0]} else f"{row} (ours: {', '.join(sorted(data))})"


def _claims(plan: Plan, scale: Scale, cells: Sequence[Filled], outcomes: Mapping[str, Outcome]) -> list[Any]:
    """Panels of bars over the same rows: accuracy, speed and memory. The paper has no numbers for them."""
    measured = [f for f in cells if f.mean is not None]
    rows = list(dict.fromkeys(f.cell.row for f in reversed(measured)))  # from below

    def bars(own: Sequence[Filled], label: str, named: bool) -> Any:
        def panel(axis: Panel) -> None:
            for f in own:
                error = {} if f.deviation is None else {"xerr": f.deviation, "capsize": 2}
                axis.barh(rows.index(f.cell.row), f.mean, color="tab:blue", **error)
            axis.set_yticks(range(len(rows)), rows if named else [""] * len(rows), fontsize="small")
            axis.set(xlabel=label, title=f"ours, {scale.name} scale", ylim=(-0.6, len(rows) - 0.4))

        return panel

    panels = {
        ACCURACY: _of_accuracy(measured),
        "images/s of training, clustering included": [f for f in measured if f.cell.figure == SPEED],
        "peak memory (MB)": [f for f in measured if f.cell.figure == MEMORY],
    }
    return [bars(own, label, named=label == ACCURACY) for label, own in panels.items()]
