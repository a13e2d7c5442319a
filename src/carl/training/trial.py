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
from carl.methods.base import FORWARD
from carl.methods.build import build_method
from carl.training.budget import LONGEST_USUAL_RUN, Pace
from carl.training.forecast import TIMED_STEPS, Forecast, Length
from carl.training.learner import Learner, build_learner
from carl.training.plan import Plan
from carl.training.probe import Probe
from carl.training.progress import TIMED_SECONDS

LONGEST_WAIT = 10.0  # seconds of steps after which two of them are enough


def measured_pace(plan: Plan, device: torch.device) -> Pace:
    """The pace of the steps, as the main process measures it, and of probes, which follows from it.

    Saving and what a method does before an epoch (PCL clusters all images) are not part of it. Nothing of the trial
    stays: method and batches are its own, and building the run's method sets the random state again.
    """
    batches = plan.batches(device)
    method = build_method(plan.config, plan.facts, device)
    learner = build_learner(plan.config, method, device, batches.steps_per_epoch)
    per_epoch = batches.steps_per_epoch
    forecast = Forecast(Length(plan.config.train.epochs, per_epoch, probe_every=0))
    for seconds in timed_steps(learner, batches):
        forecast.add_step(seconds)
        if forecast.steps == 1:
            forecast.mark()
        if distributed.agreed("enough" if _is_enough(forecast) else "") == "enough":
            break
    assert forecast.pace is not None, "there was a step"
    step = float(distributed.agreed(repr(forecast.pace)))
    # A probe is not timed: it may take as long as many steps. The main process alone computes it, without gradients.
    images_of_step = plan.config.train.batch_size * len(plan.views.recipes) / distributed.world_size()
    probe = step * FORWARD * Probe(plan.config, plan.dataset, plan.views, device).passes / images_of_step
    given = (plan.open_length or {}).get("probe", {}).get("every")
    return Pace(step * per_epoch, probe, given if isinstance(given, int) else None)


def timed_steps(learner: Learner, batches: TrainingBatches) -> Iterator[float]:
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
    """Whether the run is short even at the pace of all steps so far, the slow first one too, or the pace is known.

    Short is half of what is allowed, since there are probes too.
    """
    steps, seconds = forecast.steps, forecast.seconds
    if seconds / steps * forecast.length.epochs * forecast.length.steps_per_epoch <= LONGEST_USUAL_RUN / 2:
        return True
    return steps > 1 and (seconds >= LONGEST_WAIT or (steps > TIMED_STEPS and seconds >= TIMED_SECONDS))
