"""The progress of training: means of its figures, its speed and the time it takes, for metrics.jsonl and the screen."""

from __future__ import annotations

import time

import torch

from carl import distributed
from carl.methods.base import Metrics
from carl.training.console import Console, Moment, roughly
from carl.training.forecast import THE_REST, WILL_TAKE, Forecast, Length
from carl.training.journal import Journal
from carl.training.learner import Learner

TIMED_SECONDS = 1.0  # of steps that are timed before it is said within an epoch how long the run takes
LONG_RUN = 600.0  # seconds from which on a shorter run is offered


class Progress:
    """Collects the figures and the time of steps until they are logged and shown."""

    def __init__(self, learner: Learner, steps_per_epoch: int, journal: Journal, console: Console) -> None:
        self._learner, self._steps_per_epoch, self._journal, self._console = learner, steps_per_epoch, journal, console
        config = learner.config
        length = Length(config.train.epochs, steps_per_epoch, config.probe.every or 0, learner.total_steps)
        self._forecast = Forecast(length)
        self._said_time = False
        self._figures: dict[str, float] = {}  # those last logged
        self._loss: float | None = None  # the last one that is known
        self._probe_seconds = 0.0  # since the last step
        self._steps_ended: float | None = None  # when the last epoch's steps did
        skipped = (r["skipped_steps"] for r in journal.of_kind("step")[::-1] if "skipped_steps" in r)
        self._skipped_before = next(skipped, 0)  # fp16 steps without an update, before this process
        self._forget_figures()

    def begin_epoch(self) -> None:
        """Start measuring again, and forget what was not logged."""
        if self._steps_ended is not None:
            self._forecast.add_pause(time.monotonic() - self._steps_ended - self._probe_seconds)
        self._probe_seconds = 0.0
        self._forget_figures()
        self._console.show_step(self._moment(1 + self._learner.steps_done // self._steps_per_epoch))

    def _forget_figures(self) -> None:
        self._window: list[Metrics] = []
        self._window_started = self._step_ended = time.monotonic()

    def add(self, metrics: Metrics) -> None:
        """Take in the figures of a step, and show where the training is."""
        self._window.append(metrics)
        if self._learner.device.type == "cpu" or not self._said_time:
            self._loss = float(metrics["loss"])  # waits for a GPU, which the few steps that are timed must
        now = time.monotonic()
        self._forecast.add_step(now - self._step_ended)
        self._step_ended = self._steps_ended = now
        if self._forecast.steps == 1:
            self._forecast.mark()
        if self._forecast.seconds >= TIMED_SECONDS:
            self._say_time()
        self._console.show_step(self._moment())

    def _say_time(self) -> None:
        """Say once, as soon as it can be foretold, how long the run takes, and what a shorter one would take."""
        learner, forecast = self._learner, self._forecast
        left, pace = forecast.left(learner.steps_done), forecast.pace
        if self._said_time or left is None or pace is None or learner.steps_done == learner.total_steps:
            return
        self._said_time = True
        train, resumed = learner.config.train, learner.steps_done > forecast.steps
        what = THE_REST if resumed else train.length_in_words
        seconds = left if resumed else left + forecast.seconds
        speed = f"{train.batch_size / max(pace, 1e-9):.3g} images/s"
        text = f"{what} {WILL_TAKE} {roughly(seconds)} ({speed})"
        shorter = None if resumed or seconds < LONG_RUN else forecast.of_shorter_run()
        if shorter is not None:
            text += f"; --epochs {shorter[0]} would take {roughly(shorter[1])}"
        self._console.say(text, style="bold")

    def log(self, skipped_steps: int) -> None:
        """Log the means over the steps since the last line. `skipped_steps` steps of this process had no update."""
        learner, train = self._learner, self._learner.config.train
        names = list(self._window[0])
        means = torch.stack([torch.stack([w[n].float() for w in self._window]).mean() for n in names])
        distributed.average_([means])
        values = dict(zip(names, means.tolist(), strict=True))
        images = len(self._window) * train.batch_size
        speed = images / max(time.monotonic() - self._window_started, 1e-9)
        last = (learner.steps_done - 1) / learner.total_steps
        values["lr"] = learner.rate(last)
        values.update(learner.method.logged(last))
        if learner.scaler.is_enabled():
            values["skipped_steps"] = self._skipped_before + skipped_steps
        epoch = learner.steps_done / self._steps_per_epoch
        self._journal.write("step", learner.steps_done, epoch, images_per_second=round(speed, 1), **values)
        self._figures, self._loss = values, values["loss"]
        self._forecast.mark()
        self._console.show_step(self._moment())
        self._forget_figures()

    def note_preparation(self, epoch: int, seconds: float) -> None:
        """Log the time that a method took to prepare an epoch."""
        self._journal.write("event", self._learner.steps_done, epoch, event="prepared", seconds=seconds)

    def note_probe(self, seconds: float) -> None:
        """Take in the time of a probe, which is not part of every epoch."""
        if seconds:
            self._forecast.add_probe(seconds)
            self._probe_seconds += seconds

    def show_epoch(self) -> None:
        """Show the end of an epoch."""
        self._say_time()
        self._console.show_epoch(self._moment())

    def _moment(self, epoch: int | None = None) -> Moment:
        """Where the training is, in `epoch` or that of the last step."""
        learner, pace = self._learner, self._forecast.pace
        return Moment(
            step=learner.steps_done,
            steps=learner.total_steps,
            epoch=epoch or 1 + (learner.steps_done - 1) // self._steps_per_epoch,
            epochs=learner.config.train.epochs,
            loss=self._loss,
            images_per_second=None if pace is None else learner.config.train.batch_size / max(pace, 1e-9),
            seconds_left=self._forecast.left(learner.steps_done),
            figures=self._figures,
        )
