"""Optimisers, their parameter groups, and the schedules of rate and of the prior's weight."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from timm.optim.lars import Lars
from torch import nn

from carl.config import OptimConfig
from carl.device import GPUS

Schedule = Callable[[float, float, float], float]


def linear(progress: float, start: float, end: float) -> float:
    return start + (end - start) * progress


def cosine(progress: float, start: float, end: float) -> float:
    """Half a cosine from `start` at progress 0 to `end` at 1 (Loshchilov and Hutter 2016, without restarts)."""
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2


def exponential(progress: float, start: float, end: float) -> float:
    """Geometric interpolation; an end of 0 is replaced by a thousandth of the start, which it never reaches."""
    if start == 0:
        return 0.0
    return float(start * ((end if end > 0 else start / 1000) / start) ** progress)


def constant(progress: float, start: float, end: float) -> float:
    return start


SCHEDULES: dict[str, Schedule] = {
    "linear": linear,
    "cosine": cosine,
    "exponential": exponential,
    "constant": constant,
}


def lambda_schedule(epoch: float, start: float, end: float, epochs: float, schedule: str = "linear") -> float:
    """Weight of the prior at `epoch` (Eq. 8): from b = `start` to a = `end` over the first E = `epochs`."""
    if epochs <= 0:
        return start if schedule == "constant" else end
    return SCHEDULES[schedule](min(epoch / epochs, 1.0), start, end)


def peak_rate(optim: OptimConfig, batch_size: int) -> float:
    """The highest learning rate; scaled with the batch (Goyal et al. 2017, reference batch 256) where asked."""
    return optim.lr * batch_size / 256 if optim.scale_lr else optim.lr


def rate_at(optim: OptimConfig, batch_size: int, progress: float, epochs: int) -> float:
    """Learning rate at `progress` in [0, 1]: linear warm-up, then the schedule down to `lr_end`."""
    peak = peak_rate(optim, batch_size)
    end = optim.lr_end * peak / optim.lr
    warmup = optim.warmup_epochs / epochs
    if progress < warmup:
        return peak * progress / warmup
    after = (progress - warmup) / (1 - warmup) if warmup < 1 else 1.0
    return SCHEDULES[optim.schedule](after, peak, end)


def parameter_groups(module: nn.Module, weight_decay: float, exclude: str = "1d") -> list[dict[str, object]]:
    """Weights with decay; biases and norms (1-D), unless nothing is excluded, without decay and LARS adaptation."""
    trained = [p for p in module.parameters() if p.requires_grad]
    spared = [p for p in trained if p.ndim <= 1 and exclude == "1d"]
    names = {id(p) for p in spared}
    return [
        {"params": [p for p in trained if id(p) not in names], "weight_decay": weight_decay},
        {"params": spared, "weight_decay": 0.0},
    ]


def build_optimizer(module: nn.Module, optim: OptimConfig) -> torch.optim.Optimizer:
    groups = parameter_groups(module, optim.weight_decay, optim.exclude)
    if optim.name == "lars":
        # timm's LARS adapts a group without decay only when told to: the first always, what is excluded never.
        groups[0]["always_adapt"] = True
        lars: torch.optim.Optimizer = Lars(
            groups,
            lr=optim.lr,
            momentum=optim.momentum,
            trust_coeff=optim.trust_coefficient,
            trust_clip=optim.trust_clip,
        )
        return lars
    if optim.name == "sgd":
        sgd = torch.optim.SGD(groups, lr=optim.lr, momentum=optim.momentum, fused=_fusible(module))
        for parameter in module.parameters():  # fused, it fails if one gets its first gradient later than the others
            if parameter.requires_grad and optim.momentum:
                sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return sgd
    betas = (optim.momentum, optim.beta2)
    return torch.optim.AdamW(groups, lr=optim.lr, betas=betas, fused=_fusible(module))


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def _fusible(module: nn.Module) -> bool:
    """torch's fused updates read each parameter once instead of once an operation; all our devices have them."""
    return all(p.is_floating_point() and p.device.type in ("cpu", *GPUS) for p in module.parameters())
