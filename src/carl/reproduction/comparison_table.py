"""The table of a comparison, as Markdown and for the terminal: figures with intervals, what is shared, what is own."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from carl.errors import printable
from carl.evaluation.protocols import PROTOCOLS
from carl.reproduction.jobs import DONE

Summary = dict[str, Any]  # as comparison.json holds it
LINEAR, KNN = "linear", "knn"  # measures, as comparison.json names them
MEASURED_BY = {LINEAR: "linear-cached", KNN: "knn"}  # the protocol of each; the first decides on a rate
TITLES = {name: PROTOCOLS[protocol].title for name, protocol in MEASURED_BY.items()}
HOW = {
    LINEAR: "logistic regression on features of the central "
    f"{PROTOCOLS[MEASURED_BY[LINEAR]].centre:.1%} of each side, penalty chosen on training images",
    KNN: f"{PROTOCOLS[MEASURED_BY[KNN]].headline} nearest neighbours vote",
}
WIDEST = 120  # columns
NO_BRACKETS = str.maketrans("", "", "()")  # where an interval has a line of its own
WIDTH_OF_GAINS = 76  # columns from which on the terminal shows the gains
WIDTH_OF_COSTS = 100  # columns from which on the terminal shows speed and memory too; the files always do


def caption(found: Summary, where: str = "In brackets") -> list[str]:
    """What was measured, where and when."""
    done = [row for row in found["rows"] if row["state"] == DONE]
    how = "; ".join(f"{TITLES[name]}: {words}" for name, words in HOW.items())
    lines = [
        f"Accuracy on all test images, in percent ({how}). {where}: 95% interval over test images, and over seeds "
        "where there are several. Gain: over the same encoder with random weights."
    ]
    if found["rates_tried"]:
        tried = ", ".join(f"{rate:g}" for rate in found["rates_tried"])
        lines.append(f"Each method has the best of the learning rates {tried} on held-out training images.")
    if done:
        dates = " to ".join(dict.fromkeys((min(row["made"] for row in done), max(row["made"] for row in done))))
        lines.append(f"{'; '.join(dict.fromkeys(row['machine'] for row in done))}, {dates}.")
    return lines


def conclusion_lines(found: Summary) -> list[str]:
    """The answer for each protocol."""
    return [f"{TITLES[name]}: {' '.join(sentences)}" for name, sentences in found["conclusions"].items() if sentences]


def markdown(found: Summary) -> str:
    heads = ("method", "seeds", "linear %", "gain", "kNN %", "gain", "images/s", "peak MB", "health")
    lines = [f"Methods on {found['data']}, preset `{found['preset']}`", "", *caption(found), ""]
    lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in found["rows"]:
        cells = _cells(row)
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"- {line}" for line in conclusion_lines(found)), "", *found["footnotes"], ""]
    lines += ["Shared by all methods that were trained:", ""]
    lines += [f"- {key}: {value}" for key, value in found["shared"].items()] or ["- nothing"]
    lines += ["", "Each method's own:", ""]
    lines += [f"- {row['method']}: {_listed(row['own'])}" for row in found["rows"] if row["state"] == DONE]
    return "\n".join(lines) + "\n"


def _cells(row: dict[str, Any]) -> list[str]:
    if row["state"] != DONE:
        return [row["method"], "0", f"failed: {row['reason']}", *[""] * 6]
    figures = [cell for name in TITLES for cell in (_accuracy(row, name, " "), _gain(row, name, " "))]
    costs = [_number(row.get("images_per_second")), _number(row.get("peak_memory_mb"))]
    return [row["method"], _seeds(row), *figures, *costs, row["verdict"]]


def _seeds(row: dict[str, Any]) -> str:
    if row.get("frozen"):
        return "frozen"
    return f"{row['seeds']}" + (f" of {row['seeds_asked']}" if row["seeds"] < row["seeds_asked"] else "")


def _accuracy(row: dict[str, Any], name: str, between: str) -> str:
    """The figure and its interval, which stays on one line of a narrow table."""
    ends = row[f"{name}_interval"]
    return _number(row[name], 1) + ("" if ends is None else f"{between}({ends[0]:.1f} to {ends[1]:.1f})")


def _gain(row: dict[str, Any], name: str, between: str) -> str:
    value, random, ends = row[name], row[f"{name}_random"], row[f"{name}_gain_interval"]
    if value is None or random is None:
        return ""
    clear = ends is None or ends[0] > 0 or ends[1] < 0
    return f"{value - random:+.1f}" + ("" if clear else f"{between}(not clear)")


def _number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _listed(values: dict[str, str]) -> str:
    return "; ".join(f"{key} {value}" for key, value in values.items()) or "nothing"


def terminal_lines(found: Summary, width: int | None = None) -> list[str]:
    """The same for a terminal: a table, the answer, then what is shared and what is own."""
    width = min(WIDEST, width or shutil.get_terminal_size((100, 24)).columns)
    console = Console(file=io.StringIO(), width=width, force_terminal=False, color_system=None)
    figures = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    costs = ("images/s", "peak MB") if width >= WIDTH_OF_COSTS else ()
    gain = ("gain",) if width >= WIDTH_OF_GAINS else ()
    for head in ("method", "seeds", "linear %", *gain, "kNN %", *gain, *costs, "health"):
        words = head in ("method", "seeds", "health")
        figures.add_column(head, justify="left" if words else "right", overflow="fold", no_wrap=not words)
    failed = []
    for row in found["rows"]:
        if row["state"] != DONE:
            failed.append(f"{row['method']} failed: {row['reason']}")
            continue
        both = [(_accuracy(row, name, "\n"), _gain(row, name, "\n")) for name in TITLES]
        cells = [text.translate(NO_BRACKETS) for pair in both for text in pair[: 1 + len(gain)]]
        spent = [_number(row.get("images_per_second")), _number(row.get("peak_memory_mb"))] if costs else []
        texts = [row["method"], _seeds(row), *cells, *spent, row["verdict"]]
        figures.add_row(*(Text("\n".join(printable(part) for part in text.split("\n"))) for text in texts))
    console.print(Text(f"Methods on {printable(found['data'])}, preset {found['preset']}"))
    if figures.row_count:
        console.print(figures)
    _paragraphs(console, [*failed, *conclusion_lines(found), *found["footnotes"]])
    console.print()
    _paragraphs(console, caption(found, "Below each"))
    if found["shared"]:
        console.print(_values("Shared by all methods that were trained", list(found["shared"].items())))
    own = [(row["method"], _listed(row["own"])) for row in found["rows"] if row["state"] == DONE]
    console.print(_values("Each method's own", own))
    written = console.file
    assert isinstance(written, io.StringIO)
    return [line.rstrip() for line in written.getvalue().rstrip().split("\n")]


def _paragraphs(console: Console, texts: Sequence[str]) -> None:
    for text in texts:
        console.print(Text(printable(text)))


def _values(title: str, values: Sequence[tuple[str, str]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, title=f"\n{title}", title_justify="left", title_style="")
    table.add_column(no_wrap=False, max_width=24, overflow="fold")
    table.add_column(overflow="fold")
    for key, value in values:
        table.add_row(Text(printable(key)), Text(printable(value)))
    return table
