"""The progress of training: means of its figures, and its speed, for metrics.jsonl and for the screen."""

from __future__ import annotations

import math
import time

import torch

from carl import distributed
from carl.methods.base import Metrics
from carl.training.console import Console
from carl.training.journal import Journal
from carl.training.learner import Learner


class Progress:
    """Collects the figures of steps until they are logged."""

    def __init__(self, learner: Learner, steps_per_epoch: int, journal: Journal, console: Console) -> None:
        self._learner, self._steps_per_epoch, self._journal, self._console = learner, steps_per_epoch, journal, console
        self._speed = 0.0  # images per second
        self._shown: dict[str, float] = {}  # the figures last logged
        skipped = (r["skipped_steps"] for r in journal.of_kind("step")[::-1] if "skipped_steps" in r)
        self._skipped_before = next(skipped, 0)  # fp16 steps without an update, before this process
        self.restart_clock()

    def restart_clock(self) -> None:
        """Start measuring again, and forget what was not logged."""
        self._window: list[Metrics] = []
        self._window_started = time.monotonic()

    def add(self, metrics: Metrics) -> None:
        """Take in the figures of a step."""
        self._window.append(metrics)

    def log(self, skipped_steps: int) -> None:
        """Log the means over the steps since the last line. `skipped_steps` steps of this process had no update."""
        learner, train = self._learner, self._learner.config.train
        names = list(self._window[0])
        means = torch.stack([torch.stack([w[n].float() for w in self._window]).mean() for n in names])
        distributed.average_([means])
        values = dict(zip(names, means.tolist(), strict=True))
        images = len(self._window) * train.batch_size
        self._speed = images / max(time.monotonic() - self._window_started, 1e-9)
        last = (learner.steps_done - 1) / learner.total_steps
        values["lr"] = learner.rate(last)
        values.update(learner.method.logged(last))
        if learner.scaler.is_enabled():
            values["skipped_steps"] = self._skipped_before + skipped_steps
        epoch = learner.steps_done / self._steps_per_epoch
        self._journal.write("step", learner.steps_done, epoch, images_per_second=round(self._speed, 1), **values)
        self._shown = {**values, "img/s": self._speed}
        self._console.show_step(
            learner.steps_done, learner.total_steps, math.ceil(epoch), train.epochs, self._shown, self._seconds_left()
        )
        self.restart_clock()

    def note_preparation(self, epoch: int, seconds: float) -> None:
        """Log the time that a method took to prepare an epoch."""
        self._journal.write("event", self._learner.steps_done, epoch, event="prepared", seconds=seconds)

    def show_epoch(self, epoch: int) -> None:
        """Print a line at the end of an epoch if there is no live display."""
        if not self._console.interactive:
            epochs = self._learner.config.train.epochs
            self._console.show_line(epoch, epochs, self._shown, self._seconds_left())

    def _seconds_left(self) -> float:
        steps = self._learner.total_steps - self._learner.steps_done
        return steps * self._learner.config.train.batch_size / max(self._speed, 1e-9)
