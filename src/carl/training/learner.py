"""One optimiser step: a method with all that changes its weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from carl import distributed
from carl.config import Config
from carl.data.batches.base import Batch
from carl.methods import Method
from carl.methods.base import Metrics
from carl.models.batch_norm import share_batch_norm
from carl.optim import build_optimizer, rate_at, set_rate
from carl.precision import computing_in
from carl.training.accumulation import backward_in_parts
from carl.training.data_parallel import check_all_learn, data_parallel


def steps_of(config: Config, steps_per_epoch: int) -> int:
    """All steps of a run: whole epochs, or `train.steps`."""
    whole = config.train.epochs * steps_per_epoch
    return whole if config.train.steps is None else min(config.train.steps, whole)


def build_learner(config: Config, method: Method, device: torch.device, steps_per_epoch: int) -> Learner:
    """The learner of a run, at its first step."""
    if distributed.world_size() > 1 and shares_batch_norm(config, device):
        share_batch_norm(method, device)
    return Learner(config, method, device, steps_of(config, steps_per_epoch))


def shares_batch_norm(config: Config, device: torch.device) -> bool:
    """Whether batch norms see the batch of all processes: by default on GPUs, whose share of it is often small."""
    chosen = config.train.sync_batch_norm
    return device.type == "cuda" if chosen is None else chosen


class Learner:
    """A method, its optimiser and its precision, `steps_done` of `total_steps` into its training."""

    def __init__(self, config: Config, method: Method, device: torch.device, total_steps: int) -> None:
        self.config, self.method, self.device = config, method, device
        self.steps_done, self.total_steps = 0, total_steps
        self.optimizer = build_optimizer(method, config.optim)
        precision = config.train.precision
        self.autocast = computing_in(precision, device.type)
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        self.compute: Any = method  # computes the loss; with many processes the backward pass averages the gradients
        if distributed.world_size() > 1 and config.train.accumulate == 1:
            self.compute = data_parallel(method)
        self._all_learn = self.compute is method  # whether every weight is known to have a gradient

    @property
    def progress(self) -> float:
        """The fraction of the training that is done, in [0, 1]."""
        return self.steps_done / self.total_steps

    def rate(self, progress: float) -> float:
        """The learning rate at `progress`."""
        train = self.config.train
        return rate_at(self.config.optim, train.batch_size, progress, train.epochs)

    def take_step(self, batch: Batch) -> Metrics:
        """Update the weights once. Returns figures for the batch, still on the device."""
        progress = self.progress
        set_rate(self.optimizer, self.rate(progress))
        self.optimizer.zero_grad(set_to_none=True)
        metrics = self._backward(batch, progress)
        self.method.after_backward(progress)
        if self.config.optim.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.method.parameters(), self.config.optim.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.method.after_step(progress)
        self.steps_done += 1
        return {name: value.detach() for name, value in metrics.items()}

    def _backward(self, batch: Batch, progress: float) -> Metrics:
        """Compute the gradients for the batch of all processes."""
        parts = self.config.train.accumulate
        metrics: Metrics
        if parts > 1:
            scale: Tensor | float = self.scaler.scale(torch.ones((), device=self.device))
            metrics = backward_in_parts(self.method, batch, progress, parts, self.autocast, scale)
            distributed.average_([p.grad for p in self.method.parameters() if p.grad is not None])
            return metrics
        with self.autocast:
            loss, metrics = self.compute(batch, progress)
        self.scaler.scale(loss).backward()
        if not self._all_learn:
            check_all_learn(self.method, self.config.model.backbone)
            self._all_learn = True
        return metrics
