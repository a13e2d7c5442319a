"""Everything that resume needs, in one file: written, read, checked and restored. It is never unpickled blindly."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from carl import distributed, files
from carl.device import get_random_state, set_random_state
from carl.errors import UserError, first_line
from carl.models.pretrained import source_in_run, stated, wanted_by_run
from carl.models.torch_files import read_torch_file
from carl.models.weights import check_finite, write_weights
from carl.records.run_directory import RUN_FORMAT, RunDirectory
from carl.training.learner import Learner

# What each optimiser keeps for a weight.
OPTIMIZER_STATES = {
    "lars": {"momentum_buffer"},
    "sgd": {"momentum_buffer"},
    "adamw": {"step", "exp_avg", "exp_avg_sq"},
}


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after `step` optimiser steps."""

    step: int
    method: dict[str, Tensor]
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    random_state: Tensor  # of torch's CPU generator, for dropout and the like
    device_random_state: Tensor | None  # of the GPU's generator
    data_fingerprint: str
    seconds: float  # spent training so far

    def check(self) -> None:
        """Raise a TypeError if carl cannot have saved this."""
        numbers = isinstance(self.step, int) and isinstance(self.seconds, int | float) and math.isfinite(self.seconds)
        tables = all(isinstance(table, dict) for table in (self.method, self.optimizer, self.scaler))
        if not numbers or self.step < 0 or not tables or not isinstance(self.data_fingerprint, str):
            raise TypeError("its values are of other types")
        if not all(isinstance(value, Tensor) for value in (*self.method.values(), self.random_state)):
            raise TypeError("its weights are not tensors")
        self._check_optimizer()
        if not (self.device_random_state is None or isinstance(self.device_random_state, Tensor)):
            raise TypeError("its random state is not a tensor")

    def _check_optimizer(self) -> None:
        """Refuse anything but tensors and numbers: torch would copy whatever else the state holds."""
        states, groups = self.optimizer.get("state"), self.optimizer.get("param_groups")
        if not isinstance(states, dict) or not isinstance(groups, list):
            raise TypeError("it has no state of an optimiser")
        for state in (*states.values(), self.scaler):
            if not isinstance(state, dict) or not all(_is_figure(value) for value in state.values()):
                raise TypeError("its optimiser's state is not of tensors and numbers")
        for group in groups:
            members = group.get("params") if isinstance(group, dict) else None
            if not isinstance(members, list) or not all(isinstance(number, int) for number in members):
                raise TypeError("its optimiser's groups do not list their weights")


def _is_figure(value: object) -> bool:
    return value is None or isinstance(value, int | float | Tensor)


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    with files.atomic_writer(path) as file:
        try:
            torch.save({"format": RUN_FORMAT, **vars(checkpoint)}, file)
        except RuntimeError as error:  # torch's writer hides that the disk is full behind errors of its own
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__context__
            raise (cause or error) from None


def load_checkpoint(path: Path) -> Checkpoint:
    if not path.is_file():
        raise UserError(f"{path} does not exist, so this run cannot be resumed; start it again with another --out")
    try:
        state = read_torch_file(path)
        found = state.pop("format")
    except Exception as error:  # damaged and foreign files fail in many ways
        reason = first_line(error, otherwise="unreadable")
        raise UserError(
            f"{path} is not a checkpoint that carl wrote: {reason}; start again with another --out"
        ) from None
    if not isinstance(found, int):
        raise UserError(
            f"{path} is not a checkpoint that carl wrote: its format is not a number; start again with another --out"
        )
    if found != RUN_FORMAT:
        raise UserError(f"{path} has format {found}, not {RUN_FORMAT}; resume with the version of carl that wrote it")
    try:
        checkpoint = Checkpoint(**state)
        checkpoint.check()
    except TypeError as error:
        raise UserError(
            f"{path} is not a checkpoint that carl wrote: {error}; start again with another --out"
        ) from None
    return checkpoint


class Saver:
    """Saves a learner in its run directory, and restores it from there."""

    def __init__(self, learner: Learner, run: RunDirectory, data_fingerprint: str) -> None:
        self.learner, self.run, self.data_fingerprint = learner, run, data_fingerprint
        self.saved_step = -1
        self.seconds, self._started = 0.0, time.monotonic()  # spent training up to the last save

    def save(self) -> None:
        """Write the present weights and the checkpoint."""
        self.seconds, self._started = self.seconds + time.monotonic() - self._started, time.monotonic()
        self.saved_step = self.learner.steps_done
        if distributed.is_main():
            self._write_weights(self.run.encoder_file)
            save_checkpoint(self.run.checkpoint_file, self._checkpoint())  # last: it marks the save as complete
        distributed.barrier()

    def keep_encoder(self, epoch: int) -> None:
        """Keep a copy of the encoder as it is after this epoch."""
        if distributed.is_main():
            self._write_weights(self.run.kept_encoder(epoch))

    def keep_start(self) -> None:
        """Keep a copy of the encoder that the run starts from."""
        if distributed.is_main():
            self._write_weights(self.run.start_file, head=False)

    def keep_better(self, trained: bool) -> None:
        """Make encoder.safetensors the trained encoder, or the one that the run started from.

        The other one stays beside it. Without its encoder the head means nothing, so it goes where that is.
        """
        run = self.run
        if trained or not run.start_file.is_file():
            for stale in (run.last_file, run.head_of(run.last_file)):  # of an end that the run has gone beyond
                stale.unlink(missing_ok=True)
            return
        self._write_weights(run.last_file)
        with files.atomic_writer(run.encoder_file) as file:
            file.write(run.start_file.read_bytes())
        run.head_file.unlink(missing_ok=True)

    def _write_weights(self, encoder: Path, head: bool = True) -> None:
        """Write the encoder to this file, and its head beside it."""
        model, record = self.learner.config.model, self.run.read_data()
        facts = None
        if record is not None:
            facts = stated(model.backbone, model.stem, wanted_by_run(record), source_in_run(self.run))
        write_weights(encoder, self.learner.method.encoder, facts)
        if head:
            write_weights(self.run.head_of(encoder), self.learner.method.head)

    def _checkpoint(self) -> Checkpoint:
        learner = self.learner
        return Checkpoint(
            step=learner.steps_done,
            method=learner.method.state_dict(),
            optimizer=learner.optimizer.state_dict(),
            scaler=learner.scaler.state_dict(),
            random_state=torch.get_rng_state(),
            device_random_state=get_random_state(learner.device),
            data_fingerprint=self.data_fingerprint,
            seconds=self.seconds,
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint as if the run had never stopped."""
        learner, file = self.learner, self.run.checkpoint_file
        try:
            learner.method.load_state_dict(checkpoint.method)
            names = OPTIMIZER_STATES[learner.config.optim.name]
            restore_optimizer(learner.optimizer, checkpoint.optimizer, names)
            if learner.scaler.is_enabled():
                learner.scaler.load_state_dict(checkpoint.scaler)
            torch.set_rng_state(checkpoint.random_state)
            set_random_state(learner.device, checkpoint.device_random_state)
            if checkpoint.step > learner.total_steps:
                raise ValueError(f"step {checkpoint.step} of {learner.total_steps}")
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            reason = first_line(error)
            raise UserError(f"{file} does not fit config.toml: {reason}; restore the one it was made with") from None
        check_finite(file, learner.method)
        learner.steps_done = self.saved_step = checkpoint.step
        self.seconds = checkpoint.seconds


def restore_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any], names: set[str]) -> None:
    """Take the state that each weight has in `saved`: the values `names`. Rates and momentum stay as configured.

    Everything is checked before torch copies it. torch takes any state, and a tensor that repeats one number (an
    expanded view) takes the memory of its whole shape once it is copied.
    """
    groups = [
        {**own, "params": group["params"]}
        for own, group in zip(optimizer.param_groups, saved["param_groups"], strict=True)
    ]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in groups for number in group["params"]]
    by_number = dict(zip(numbers, parameters, strict=True))
    for number, state in saved["state"].items():
        if number not in by_number:
            raise ValueError(f"the optimiser has a state for weight {number!r}, which does not exist")
        _check_state(state, by_number[number], names)
    optimizer.load_state_dict({"state": saved["state"], "param_groups": groups})


def _check_state(state: dict[str, Any], parameter: Tensor, names: set[str]) -> None:
    """Refuse what the first step of the optimiser would fail on, or go wrong with."""
    if state and state.keys() != names:
        raise ValueError(f"the optimiser's state of a weight is not {', '.join(sorted(names))}")
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.shape != (() if name == "step" else parameter.shape):
            shape = tuple(value.shape) if isinstance(value, Tensor) else value
            raise ValueError(f"{name} of shape {shape} for weights {tuple(parameter.shape)}")
        if not bool(value.isfinite().all()):
            raise ValueError(f"{name} is not finite")
