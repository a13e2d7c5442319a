"""What a person sees while a run trains: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, cast

from rich.console import Console as RichConsole
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from carl.lasting_output import LastingOutput

PLAIN_INTERVAL = 30.0  # seconds between two plain lines within an epoch


def duration(seconds: float) -> str:
    """90 -> '1m30s'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


class Console:
    """Shows progress, in the main process only. Output that fails is dropped: training goes on without it."""

    def __init__(self, silent: bool = False) -> None:
        output = cast("IO[str]", LastingOutput(sys.stdout))  # it is all of a stream that rich asks for
        self._rich = RichConsole(file=output, quiet=silent, highlight=False, soft_wrap=True)
        self._live: Live | None = None
        self._probe = ""
        self._last_line = 0.0

    @property
    def interactive(self) -> bool:
        return self._rich.is_terminal and not self._rich.quiet

    def say(self, text: str, style: str = "") -> None:
        """A line that stays."""
        self._rich.print(escape(text), style=style)

    @contextmanager
    def live(self) -> Iterator[None]:
        """Inside, a display that is drawn anew with each step, on a terminal."""
        if not self.interactive:
            yield
            return
        with Live(console=self._rich, refresh_per_second=4, transient=True) as self._live:
            try:
                yield
            finally:
                self._live = None

    def show_probe(self, text: str) -> None:
        self._probe = text

    def show_step(
        self, step: int, total: int, epoch: int, epochs: int, figures: Mapping[str, float], seconds_left: float
    ) -> None:
        """Progress after `step` of `total` steps."""
        if self._live is not None:
            self._live.update(self._panel(step, total, epoch, epochs, figures, seconds_left))
        elif time.monotonic() - self._last_line > PLAIN_INTERVAL:
            self.show_line(epoch, epochs, figures, seconds_left)

    def show_line(self, epoch: int, epochs: int, figures: Mapping[str, float], seconds_left: float) -> None:
        self._last_line = time.monotonic()
        left = f"  {duration(seconds_left)} left" if seconds_left >= 1 else ""
        self.say(f"epoch {epoch}/{epochs}  {_listed(figures)}{left}{'  ' + self._probe if self._probe else ''}")

    def _panel(
        self, step: int, total: int, epoch: int, epochs: int, figures: Mapping[str, float], seconds_left: float
    ) -> Table:
        grid = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=total, completed=step, width=30)
        grid.add_row(f"epoch {epoch}/{epochs}", bar, f"{step}/{total} steps", f"{duration(seconds_left)} left")
        lines = Table.grid()
        lines.add_row(grid)
        lines.add_row(_listed(figures))
        if self._probe:
            lines.add_row(escape(self._probe))
        return lines


def _listed(figures: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
