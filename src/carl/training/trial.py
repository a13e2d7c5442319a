"""The time of an epoch, from a few steps of a training that is thrown away, for a run whose length nobody gave.

The run cannot time its own steps for that: their learning rate already follows from the number of epochs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count

import torch

from carl import distributed
from carl.data.batches.base import Batch, TrainingBatches
from carl.methods.build import build_method
from carl.training.budget import LONGEST_USUAL_RUN
from carl.training.forecast import Forecast, Length
from carl.training.learner import Learner, build_learner
from carl.training.plan import Plan
from carl.training.progress import LONGEST_WAIT, TIMED_SECONDS, TIMED_STEPS


def epoch_seconds(plan: Plan, device: torch.device) -> float:
    """Seconds of an epoch's steps, as the main process measures them; all processes get the same number.

    Probes, saving and what a method does before an epoch (PCL clusters all images) are not part of it. Nothing of the
    trial stays: method and batches are its own, and building the run's method sets the random state again.
    """
    batches = plan.batches(device)
    method = build_method(plan.config, plan.facts, device)
    learner = build_learner(plan.config, method, device, batches.steps_per_epoch)
    per_epoch = batches.steps_per_epoch
    forecast = Forecast(Length(plan.config.train.epochs, per_epoch, probe_every=0))
    for seconds in _timed_steps(learner, batches):
        forecast.add_step(seconds)
        if forecast.steps == 1:
            forecast.mark()
        if distributed.agreed("enough" if _is_enough(forecast) else "") == "enough":
            break
    assert forecast.pace is not None, "there was a step"
    return float(distributed.agreed(repr(forecast.pace * per_epoch)))


def _timed_steps(learner: Learner, batches: TrainingBatches) -> Iterator[float]:
    """Train, and give the seconds of each step."""
    start = time.monotonic()
    for batch in _batches(learner, batches):
        float(learner.take_step(batch)["loss"])  # waits for a GPU
        yield time.monotonic() - start
        start = time.monotonic()


def _batches(learner: Learner, batches: TrainingBatches) -> Iterator[Batch]:
    for epoch in count():
        yield from batches.epoch(epoch, 0, learner.method.partners(epoch))


def _is_enough(forecast: Forecast) -> bool:
    """Whether the run is short even at the pace of all steps so far, the slow first one too, or the pace is known."""
    steps, seconds = forecast.steps, forecast.seconds
    if seconds / steps * forecast.length.epochs * forecast.length.steps_per_epoch <= LONGEST_USUAL_RUN:
        return True
    return steps > 1 and (seconds >= LONGEST_WAIT or (steps > TIMED_STEPS and seconds >= TIMED_SECONDS))
