"""How long a run takes: from what its own steps, its probes and the ends of its epochs have taken so far."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

REMEMBERED = 20  # marks that the pace is taken over, so that it follows a machine that becomes slower or faster
TIMED_STEPS = 3  # from which on the rest is foretold: the first, which takes longer than others, and two that count
SHORTER = (5, 10, 20, 50, 100)  # numbers of epochs that a shorter run may have
WILL_TAKE = "will take about"  # in the line that says how long a run takes
THE_REST = "the rest"  # begins that line if the run resumes


def whole_run_foretold(line: str) -> float | None:
    """The seconds in the line that says how long a run takes; None for other lines, and where it is only the rest."""
    found = re.search(rf" {WILL_TAKE} (?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)? \(", line)
    if found is None or line.startswith(THE_REST):
        return None
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return 3600.0 * hours + 60 * minutes + seconds


@dataclass(frozen=True)
class Length:
    """How long a run is, in what takes time."""

    epochs: int
    steps_per_epoch: int
    probe_every: int  # epochs; 0: there are no probes
    steps: int | None = None  # of the whole run, if it ends within an epoch

    def probes_after(self, epoch: float) -> int:
        """The probes that are due after `epoch`: every so many epochs, and at the end."""
        if not self.probe_every or epoch >= self.epochs:
            return 0
        regular = self.epochs // self.probe_every - int(epoch) // self.probe_every
        return regular + (self.epochs % self.probe_every > 0)


class Forecast:
    """Collects seconds and foretells the rest."""

    def __init__(self, length: Length) -> None:
        self.length = length
        self.steps = 0  # taken in this process
        self.seconds = 0.0  # of these steps
        self._marks: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)
        self._probe = 0.0  # seconds of a probe
        self._between = 0.0  # seconds between two epochs, without the probe

    def add_step(self, seconds: float) -> None:
        self.steps, self.seconds = self.steps + 1, self.seconds + seconds

    def mark(self) -> None:
        """Count the pace from here on, once older marks are forgotten.

        The first mark belongs after the first step, which takes longer than others: memory is allocated, kernels are
        chosen.
        """
        self._marks.append((self.steps, self.seconds))

    def add_probe(self, seconds: float) -> None:
        self._probe = seconds

    def add_pause(self, seconds: float) -> None:
        """Take in the time between two epochs, without the probe."""
        self._between = seconds

    @property
    def pace(self) -> float | None:
        """Seconds per step; None before the first."""
        if not self.steps:
            return None
        steps, seconds = next((mark for mark in self._marks if mark[0] < self.steps), (0, 0.0))
        return (self.seconds - seconds) / (self.steps - steps)

    def left(self, steps_done: int) -> float | None:
        """Seconds until the end of the run, of whose steps so many are done; None before TIMED_STEPS were taken."""
        if self.pace is None or self.steps < TIMED_STEPS:
            return None
        epoch = steps_done / self.length.steps_per_epoch
        steps = (self.length.steps or self.length.epochs * self.length.steps_per_epoch) - steps_done
        pauses = self.length.epochs - int(epoch) if steps else 0
        return steps * self.pace + pauses * self._between + self.length.probes_after(epoch) * self._probe

    def of_shorter_run(self) -> tuple[int, float] | None:
        """A number of epochs that is a fifth of the run or less, and its seconds; None if the run is short already."""
        number = max((number for number in SHORTER if number <= self.length.epochs // 5), default=None)
        if number is None or self.pace is None:
            return None
        probes = min(number, max(1, self.length.probes_after(0)))
        return number, number * (self.length.steps_per_epoch * self.pace + self._between) + probes * self._probe
