"""What a person sees while a run trains: a live display on a terminal, one line per epoch elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, cast

from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from carl import durations
from carl.errors import printable
from carl.lasting_output import LastingOutput

LONG_EPOCH = 600.0  # seconds after which a line is printed within an epoch too, where there is no live display
NARROWEST_BAR, WIDEST_BAR = 8, 60


def duration(seconds: float) -> str:
    """90 -> '1m30s'."""
    return durations.in_words(seconds, ("h", "m", "s"), gap="")


def roughly(seconds: float) -> str:
    """A duration that was foretold: from ten minutes on without seconds."""
    return duration(seconds) if seconds < 600 or seconds >= 3600 else f"{round(seconds / 60)}m"


@dataclass(frozen=True)
class Probed:
    """What the last probe found."""

    epoch: int
    quality: str  # a few words: its main figure
    details: str  # the others
    explained: str = ""  # what the main figure means, to be said once


@dataclass(frozen=True)
class Moment:
    """Where a training is, and its main figures."""

    step: int
    steps: int
    epoch: int  # the one that is under way
    epochs: int
    loss: float | None = None  # None before it is known
    images_per_second: float | None = None
    seconds_left: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)  # all that training measures

    @property
    def part_of_epoch(self) -> float:
        """How much of the epoch that is under way is done, in [0, 1]."""
        return self.step * self.epochs / self.steps - (self.epoch - 1)


class Console:
    """Shows progress, in the main process only. Output that fails is dropped: training goes on without it."""

    def __init__(self, silent: bool = False, details: bool = False) -> None:
        output = cast("IO[str]", LastingOutput(sys.stdout))  # it is all of a stream that rich asks for
        self._rich = RichConsole(file=output, quiet=silent, highlight=False, soft_wrap=True)
        self._details = details
        self._live: Live | None = None
        self._probed: Probed | None = None
        self._moment: Moment | None = None
        self._doing = ""
        self._started = self._shown = self._last_line = time.monotonic()

    @property
    def interactive(self) -> bool:
        return self._rich.is_terminal and not self._rich.quiet

    def say(self, text: str, style: str = "") -> None:
        """A line that stays. Names in it may hold any characters, and reach the terminal as text."""
        self._rich.print(
            escape(printable(text)), style=style, soft_wrap=not self.interactive
        )  # words stay whole on a terminal

    @contextmanager
    def live(self) -> Iterator[None]:
        """Inside, a display whose clock runs, and which each step brings up to date, on a terminal."""
        self._started = self._last_line = time.monotonic()
        if not self.interactive:
            yield
            return
        with Live(console=self._rich, get_renderable=self.display, refresh_per_second=4, transient=True) as self._live:
            try:
                yield
            finally:
                self._live = None
                self._moment = None

    def show_doing(self, words: str) -> None:
        """What is under way before the first epoch."""
        self._doing = words

    def show_probe(self, probed: Probed) -> None:
        self._probed = probed

    def show_start(self, probed: Probed) -> None:
        """The quality before training: a line that stays."""
        self._probed = probed
        self.say(f"before training: {probed.quality}" + (f" ({probed.explained})" if probed.explained else ""))
        if self._details:
            self.say(f"  probe: {probed.details}")

    def show_step(self, moment: Moment) -> None:
        """Progress after a step."""
        self._moment, self._shown = moment, time.monotonic()
        if self._live is None and self._shown - self._last_line > LONG_EPOCH:
            self._print_line(f"epoch {moment.epoch}/{moment.epochs} at {moment.part_of_epoch:.0%}", moment)

    def show_epoch(self, moment: Moment) -> None:
        """A line at the end of an epoch; under a live display only if there was a probe, which keeps them few."""
        self._moment, self._shown = moment, time.monotonic()
        probed_now = self._probed is not None and self._probed.epoch == moment.epoch
        if self._live is None or probed_now:
            self._print_line(f"epoch {moment.epoch}/{moment.epochs}", moment)
            if self._details:
                self.say(f"  training: {_listed(moment.figures)}")
            if self._details and probed_now and self._probed is not None:
                self.say(f"  probe: {self._probed.details}")

    def _print_line(self, where: str, moment: Moment) -> None:
        self._last_line = time.monotonic()
        left = [] if moment.seconds_left is None or moment.step == moment.steps else [_left(moment.seconds_left)]
        self.say("  ".join([where, *_main_figures(moment, self._probed), *left]))

    def display(self, width: int | None = None) -> Group:
        """What is under the lines that stay, for a terminal of this width. The clock goes on between two steps."""
        moment, now = self._moment, time.monotonic()
        elapsed = f"{duration(now - self._started)} elapsed"
        if moment is None:
            return Group(_one_line(f"{self._doing} ... {elapsed}")) if self._doing else Group()
        left = "timing the first steps"
        if moment.seconds_left is not None:
            left = _left(max(0.0, moment.seconds_left - (now - self._shown)))
        place, steps = f"epoch {moment.epoch}/{moment.epochs}", f"step {moment.step}/{moment.steps}"
        times = f"{elapsed}, {left}"
        room = (width or self._rich.width) - sum(map(len, (place, steps, times))) - 4
        row = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=moment.steps, completed=moment.step, width=max(NARROWEST_BAR, min(WIDEST_BAR, room)))
        row.add_row(place, bar, steps, times)
        lines: list[RenderableType] = [row, _one_line("  ".join(_main_figures(moment, self._probed)))]
        if self._details and moment.figures:
            lines.append(_one_line(f"training: {_listed(moment.figures)}"))
        if self._details and self._probed is not None:
            lines.append(_one_line(f"probe: {self._probed.details}"))
        return Group(*lines)


def _main_figures(moment: Moment, probed: Probed | None) -> list[str]:
    """Loss, quality and speed, as far as they are known."""
    found = [] if moment.loss is None else [f"loss {moment.loss:.4g}"]
    if probed is not None:
        now = probed.epoch == moment.epoch
        found.append(probed.quality if now else f"{probed.quality} (epoch {probed.epoch})")
    return found + ([] if moment.images_per_second is None else [f"{moment.images_per_second:.3g} images/s"])


def _one_line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


def _left(seconds: float) -> str:
    return f"{roughly(seconds)} left"


def _listed(figures: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
