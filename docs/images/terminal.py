"""Pictures of the terminal in the first minute of a run: python -m docs.images.terminal DATA [--image-size PX]

One run is trained, for so many seconds after it has said how long it takes. What it has printed by then, and the
display below it, are drawn for terminals of 80 and 140 columns: terminal.svg and terminal-wide.svg.
"""

from __future__ import annotations

import argparse
import io
import re
import tempfile
import time
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console as RichConsole
from rich.console import Group
from rich.markup import escape
from rich.terminal_theme import MONOKAI

from carl.config import layer_of_flags
from carl.training import run
from carl.training.console import Console, Moment
from carl.training.plan import PretrainRequest, plan

WIDTHS = {"terminal": 80, "terminal-wide": 140}
# Without the web fonts that rich asks for: pages load nothing from elsewhere.
PLAIN_FORMAT = re.sub(r"@font-face \{\{.*?\}\}|<!--.*?-->", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


class Enough(Exception):
    """The run has been seen for long enough."""


class Remembering(Console):
    """A console that remembers what it said, and ends the run some time after it said how long it takes."""

    seconds = 60.0
    said: list[tuple[str, str]]
    displays: dict[int, Group]

    def __init__(self, silent: bool = False, details: bool = False) -> None:
        super().__init__(silent, details)
        self._rich = RichConsole(file=io.StringIO(), force_terminal=True, width=140, highlight=False)
        self.said, self._end = [], float("inf")

    def say(self, text: str, style: str = "") -> None:
        super().say(text, style)
        self.said.append((text, style))
        if " will take about " in text:
            self._end = time.monotonic() + self.seconds

    def show_step(self, moment: Moment) -> None:
        super().show_step(moment)
        if time.monotonic() > self._end:
            self.displays = {width: self.display(width) for width in WIDTHS.values()}
            raise Enough(self)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--image-size", type=int, metavar="PX")
    parser.add_argument("--into", default=Path(__file__).parent, type=Path, metavar="FOLDER")
    options = parser.parse_args()
    Remembering.seconds = options.seconds
    run.Console = Remembering  # type: ignore[misc]
    layer = layer_of_flags({"data": options.data, "image_size": options.image_size})
    place = Path(options.data).resolve()
    command = f"carl pretrain {place.name}/" + (f" --image-size {options.image_size}" if options.image_size else "")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        names = {str(out): f"runs/{place.name}-carl", f"{place.parent}/": "/home/ada/"}
        try:
            run.carry_out(plan(PretrainRequest(layer, out, fit_time=True)))
        except Enough as enough:
            (console,) = enough.args
            for name, width in WIDTHS.items():
                text = drawn(console, width, command, names)
                (options.into / f"{name}.svg").write_text(text, encoding="utf-8")


def drawn(console: Remembering, width: int, command: str, names: dict[str, str]) -> str:
    """What a terminal of this width shows, as SVG. `names` replaces paths of this machine."""
    screen = RichConsole(file=io.StringIO(), record=True, force_terminal=True, width=width, highlight=False)
    screen.print(f"$ {command}", style="bold")
    for text, style in console.said:
        for path, name in names.items():
            text = text.replace(path, name)
        screen.print(escape(text), style=style, soft_wrap=False)
    screen.print(console.displays[width])
    return screen.export_svg(title="", theme=MONOKAI, code_format=PLAIN_FORMAT, unique_id=f"columns-{width}")


if __name__ == "__main__":
    main()
