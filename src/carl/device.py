"""The device that a command computes on."""

from __future__ import annotations

import torch
from torch import Tensor

from carl.defaults import DEVICES
from carl.errors import UserError
from carl.records.environment import Hardware

GPUS = ("cuda", "mps", "xpu")  # NVIDIA and AMD, Apple, Intel; the best first


def present_gpus() -> list[str]:
    """The kinds of GPU that torch sees on this machine."""
    return [kind for kind in GPUS if getattr(torch, kind).is_available()]


def pick_device(name: str, option: str = "train.device") -> torch.device:
    """`auto` takes the best there is; errors name the `option` that the user gave."""
    if name == "auto":
        name = next(iter(present_gpus()), "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"{option}={name!r} is not a device; use {DEVICES}") from None
    if device.type not in ("cpu", *GPUS):
        raise UserError(f"{option}={name!r} is not supported; use {DEVICES}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"{option}={name!r}: torch sees no CUDA device here; use auto or cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"{option}={name!r}: there are {torch.cuda.device_count()} CUDA devices; use a lower number")
    if device.type in ("mps", "xpu") and device.type not in present_gpus():
        raise UserError(f"{option}={name!r}: torch sees no {device.type.upper()} device here; use auto or cpu")
    return device


def get_random_state(device: torch.device) -> Tensor | None:
    """State of the device's own generator, None if it uses the CPU's."""
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    if device.type == "xpu":
        return torch.xpu.get_rng_state(device)
    return torch.mps.get_rng_state() if device.type == "mps" else None


def set_random_state(device: torch.device, state: Tensor | None) -> None:
    if state is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    elif state is not None and device.type == "xpu":
        torch.xpu.set_rng_state(state, device)
    elif state is not None and device.type == "mps":
        torch.mps.set_rng_state(state)


def hardware(device: torch.device) -> Hardware:
    """What the records of a run or a result tell of where it was made."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return Hardware(str(device), torch.get_num_threads(), gpu)
