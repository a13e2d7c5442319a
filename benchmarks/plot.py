"""Draws what was measured: results/benchmarks/*.json to one picture each, beside them.

python -m benchmarks.plot [FOLDER]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Table = dict[str, Any]

FOLDER = Path(__file__).parent.parent / "results" / "benchmarks"
OURS, OTHERS = "#2a6f97", "#b8b8b8"
NAMES = {
    "carl": "this project",
    "torchvision": "torchvision (PIL)",
    "torchvision_v2": "torchvision v2",
    "floor": "floor: views already made",
    "carl_bf16": "this project, bfloat16",
    "lightly_bf16": "lightly, bfloat16",
    "floor_bf16": "floor, bfloat16",
    "timm": "timm + DataLoader",
}


def views_picture(table: Table) -> Figure:
    """Microseconds a view by engine, one panel a side."""
    figure = Figure(figsize=(3.2 * len(table), 2.6), layout="constrained")
    for axes, (side, engines) in zip(_panels(figure, len(table)), table.items(), strict=True):
        _bars(axes, engines, "{:.0f}")
        axes.set_title(f"{side} px", fontsize=10)
        axes.set_xlabel("us per SimCLR view, one thread", fontsize=8)
    return figure


def train_step_picture(table: Table) -> Figure:
    """Milliseconds a step of the plain model and of ours, one panel a case."""
    table = _measured(table)
    figure = Figure(figsize=(2.6 * len(table), 1.6), layout="constrained")
    for axes, (case, found) in zip(_panels(figure, len(table)), table.items(), strict=True):
        _bars(axes, {"carl": found["carl_ms"], "plain": found["plain_ms"]}, "{:.0f}")
        side, _, stem = case.partition("-")
        axes.set_title(f"{side} px{f', {stem} stem' if stem else ''}: {found['ratio']:.2f} x", fontsize=10)
        axes.set_xlabel("ms per training step", fontsize=8)
    return figure


def speed_picture(table: Table) -> Figure:
    """Images a second by side."""
    table = _measured(table)
    figure = Figure(figsize=(6.0, 0.6 + 0.4 * len(table)), layout="constrained")
    (axes,) = _panels(figure, 1)
    _bars(axes, table, "{:.0f}")
    axes.set_xlabel("images per second", fontsize=8)
    return figure


def _measured(table: Table) -> Table:
    """The table without what it says about the machine."""
    return {name: value for name, value in table.items() if name != "machine"}


def _panels(figure: Figure, count: int) -> list[Axes]:
    return [figure.add_subplot(1, count, place + 1) for place in range(count)]


def _bars(axes: Axes, values: Table, form: str) -> None:
    names = [NAMES.get(name, name) for name in values]
    bars = axes.barh(
        names, list(values.values()), color=[OURS if name.startswith("carl") else OTHERS for name in values]
    )
    axes.bar_label(bars, [form.format(value) for value in values.values()], fontsize=8, padding=2)
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


PICTURES: dict[str, Callable[[Table], Figure]] = {
    "views": views_picture,
    "train_step": train_step_picture,
    "end_to_end": speed_picture,
    "photos": speed_picture,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER, help="where the JSON files are")
    options = parser.parse_args(arguments)
    matplotlib.rcParams["font.family"] = "sans-serif"
    for name, draw in PICTURES.items():
        source = options.folder / f"{name}.json"
        if source.exists():
            target = source.with_suffix(".png")
            draw(json.loads(source.read_text())).savefig(target, dpi=120)
            print(target)


if __name__ == "__main__":
    main()
