"""All that resume needs, in one file that is never unpickled blindly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from carl import files
from carl.errors import UserError
from carl.models.torch_files import read_torch_file
from carl.records.run_directory import RUN_FORMAT


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
        """Raise a TypeError for what no run of ours has saved."""
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
        """torch copies whatever an optimiser's state holds, list for list; ours are tensors and numbers."""
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


def get_device_random_state(device: torch.device) -> Tensor | None:
    """State of the device's own generator, None where the CPU's serves."""
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.mps.get_rng_state() if device.type == "mps" else None


def set_device_random_state(device: torch.device, state: Tensor | None) -> None:
    if state is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    elif state is not None and device.type == "mps":
        torch.mps.set_rng_state(state)


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
        reason = (str(error).splitlines() or ["unreadable"])[0]
        raise UserError(f"{path} is not a checkpoint of ours: {reason}; start again with another --out") from None
    if not isinstance(found, int):
        raise UserError(f"{path} is not a checkpoint of ours: its format is no number; start again with another --out")
    if found != RUN_FORMAT:
        raise UserError(f"{path} has format {found}, not {RUN_FORMAT}; resume with the version of carl that wrote it")
    try:
        checkpoint = Checkpoint(**state)
        checkpoint.check()
    except TypeError as error:
        raise UserError(f"{path} is not a checkpoint of ours: {error}; start again with another --out") from None
    return checkpoint
