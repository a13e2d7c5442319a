"""What any command may show on a terminal, and how work tells how far it has come.

Our own, because rich's progress bars say nothing in a log. Training, which shows more on a terminal, uses rich
(`training/console.py`).
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from carl.durations import in_words
from carl.errors import printable
from carl.launch import is_first

Say = Callable[[str], None]  # shows a line
Progress = Callable[[str, int, int], None]  # what is being done, how much is done, out of how much (0: unknown)
_CALL_EVERY = 0.1  # seconds


def silent(what: str, done: int, total: int) -> None:
    """The progress callback that shows nothing."""


def throttled(progress: Progress) -> Progress:
    """The same callback, called at most ten times per second, and always at the end."""
    last = 0.0

    def call(what: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done >= total > 0 or now - last >= _CALL_EVERY:
            last = now
            progress(what, done, total)

    return call


def show_progress(what: str, done: int, total: int) -> None:
    """Show `decoding train: 300 of 2000` on one line of the terminal, rewritten each time; nothing without a terminal.

    Among the processes that torchrun starts, only the first shows it.
    """
    if _on_terminal() and is_first():
        known = f" of {total}" if total else ""
        _write(f"\r{printable(what)}: {done}{known} " + ("\n" if done == total else ""))


class TimedProgress:
    """Progress with the rate and the time left, such as `embedding: 300 of 2,000 images, 45 images/s, 38s left`.

    Without a unit it has no rate: `grouping: 300 of 2,000, 38s left`. Work of unknown length is only named.

    On a terminal it is one line that is rewritten. Elsewhere it is a line on standard error after ten seconds, so that
    a log says how long the work will take, and then one per minute.
    """

    _WINDOW = 30.0  # seconds over which the rate is taken: decoding has slow and fast stretches
    _FIRST, _EVERY = 10.0, 60.0  # seconds until the first line of a log, and between two

    def __init__(self, clock: Callable[[], float] = time.monotonic, unit: str = "images") -> None:
        self._clock = clock
        self._unit = unit
        self._what = ""
        self._seen: deque[tuple[float, int]] = deque()
        self._next_line = 0.0
        self._shown = False

    def __call__(self, what: str, done: int, total: int) -> None:
        now = self._clock()
        if what != self._what:
            self._what, self._next_line = what, now + self._FIRST
            self._seen.clear()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > self._WINDOW:
            self._seen.popleft()
        if not is_first():
            return
        if _on_terminal():
            self._shown = done != total or not total
            show_line(self._line(done, total))
            if not self._shown:
                _write("\n")
        elif now >= self._next_line and done != total:
            self._next_line = now + self._EVERY
            warn(self._line(done, total))

    def close(self) -> None:
        """Leave the terminal's line as it was, for what is written next."""
        if self._shown:
            show_line("")
            self._shown = False

    def _line(self, done: int, total: int) -> str:
        (start, first), (end, _) = self._seen[0], self._seen[-1]
        if not done and not total:
            return f"{self._what} ..."
        known = f" of {total:,}" if total else ""
        line = f"{self._what}: {done:,}{known}" + (f" {self._unit}" if self._unit else "")
        if end - start < 0.5 or done <= first:
            return line
        rate = (done - first) / (end - start)
        if self._unit:
            line += f", {rate:,.0f} {self._unit}/s" if rate >= 10 else f", {rate:.1f} {self._unit}/s"
        return f"{line}, {in_words((total - done) / rate, ('h', 'm', 's'), gap='')} left" if total > done else line


def show_line(text: str) -> None:
    """Show `text`, cut to the width of the terminal, over the line shown before; nothing without a terminal."""
    if _on_terminal():
        width = shutil.get_terminal_size().columns - 1
        _write(f"\r{printable(text)[:width].ljust(width)}" + ("" if text else "\r"))


def warn(text: str) -> None:
    """Write one line to standard error; among the processes that torchrun starts, only the first does."""
    if is_first():
        _write(f"carl: {printable(text)}\n")


def reserve_standard_streams() -> None:
    """Put the null device where a standard stream is closed.

    Otherwise the next file to be opened gets its number, and what a library writes to standard error ends up in it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one


def _on_terminal() -> bool:
    with suppress(ValueError):  # the stream was closed
        return sys.stderr is not None and sys.stderr.isatty()
    return False


def _write(text: str) -> None:
    """Write to standard error if that is possible: work goes on whether anyone listens or not."""
    with suppress(OSError, ValueError):
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()
