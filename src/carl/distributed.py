"""Many processes as one: start-up under torchrun, and statistics over the batch of all of them.

Gradients: `DistributedDataParallel` averages the gradients of the processes, so each process must
differentiate the *sum* of all their losses with respect to its own inputs. The backward pass of every
function here does that; two processes on halves of a batch then have the gradient of one on the whole.
"""

from __future__ import annotations

import math
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


def is_main() -> bool:
    """True in the one process that writes and speaks."""
    return rank() == 0


def start(device: torch.device) -> torch.device:
    """Join the process group when torchrun started us; return the device of this process."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return device
    backend = "nccl" if device.type == "cuda" else "gloo"
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group(backend, timeout=timedelta(minutes=30))
    return device


def stop() -> None:
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def restarted() -> bool:
    """True when torchrun's elastic agent has started this process again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def barrier() -> None:
    if world_size() > 1:
        dist.barrier()


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


def mean(value: Tensor) -> Tensor:
    """Mean of `value` over all processes, differentiable."""
    if world_size() == 1:
        return value
    total: Tensor = _Sum.apply(value)
    return total / world_size()


def log_mean_exp(log_values: Tensor) -> Tensor:
    """log of the mean of exp(log_values) over rows and processes: (B, K) -> (K,), differentiable.

    Values whose exponential underflows stay exact and keep finite gradients, which `log(mean(exp(x)))` does
    not give. Costs two all-reduces of K numbers.
    """
    if world_size() == 1:
        return log_values.logsumexp(dim=0) - math.log(len(log_values))
    highest = log_values.detach().amax(dim=0)
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    return mean((log_values - highest).exp().mean(dim=0)).log() + highest


def agreed(text: str) -> str:
    """The main process's `text`, in every process."""
    if world_size() == 1:
        return text
    box: list[str] = [text]
    dist.broadcast_object_list(box, src=0)
    return box[0]
