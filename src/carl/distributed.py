"""Many processes as one: start-up under torchrun, and statistics over the batch of all of them.

Gradients: `DistributedDataParallel` averages the gradients of the processes, so each process must
differentiate the *sum* of all their losses with respect to its own inputs. The backward pass of every
function here does that; two processes on halves of a batch then have the gradient of one on the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.rendezvous import rendezvous

from carl import launch
from carl.errors import UserError

TIMEOUT = timedelta(minutes=30)  # torch's own: packing a large data set may take the first process this long
_alone = False  # whether this process computes as if there were no others


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() and not _alone else 1


@contextmanager
def computing_alone() -> Iterator[None]:
    """Inside, each process computes as if it were the only one."""
    with _computing(alone=True):
        yield


@contextmanager
def computing_together() -> Iterator[None]:
    """Inside, the processes share the work, even within `computing_alone`."""
    with _computing(alone=False):
        yield


@contextmanager
def _computing(alone: bool) -> Iterator[None]:
    global _alone
    before, _alone = _alone, alone
    try:
        yield
    finally:
        _alone = before


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


def is_main() -> bool:
    """True in the one process that writes and speaks."""
    return rank() == 0


def start(device: torch.device) -> torch.device:
    """Join the process group when torchrun started us; return the device of this process."""
    if launch.processes() == 1:
        return device
    launch.check()
    if device.type in ("mps", "xpu"):
        raise UserError(
            f"an {device.type.upper()} device takes one process, not {launch.processes()}; use train.device=cpu, "
            "or no torchrun"
        )
    backend = "nccl" if device.type == "cuda" else "gloo"
    if device.type == "cuda":
        device = torch.device("cuda", _local_gpu())
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        store, number, ranks = next(rendezvous("env://", timeout=TIMEOUT))
        # The store outlives processes that torchrun starts again. Without the attempt in its keys, a quick process
        # would find the addresses of processes that are gone (seen with torch 2.15 on a busy machine). Machines that
        # come or go do not count as a restart, so the number of processes is in the keys too.
        store = PrefixStore(f"carl/attempt {launch.attempt()} of {ranks} processes", store)
        dist.init_process_group(backend, store=store, rank=number, world_size=ranks, timeout=TIMEOUT)
    return device


def _local_gpu() -> int:
    number, found = launch.gpu(), torch.cuda.device_count()
    if number >= found:
        raise UserError(f"process {number} of this machine has no GPU, there are {found}; use --nproc-per-node {found}")
    return number


def stop() -> None:
    """Leave the group: from here on each process is on its own."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def fails_first() -> bool:
    """Whether no other process of this run has failed yet. One that fails after another has nothing to add.

    The store through which they meet keeps the count, so this works before they have met and after some are gone.
    """
    address = launch.store_address()
    if address is None or not launch.one_of_many():
        return True
    try:
        store = TCPStore(*address, is_master=False, timeout=timedelta(seconds=5))
        return int(store.add(f"carl/failed in attempt {launch.attempt()}", 1)) == 1
    except (RuntimeError, ValueError):  # there is no store, or it is gone: better said twice than never
        return True


def means_lost_peer(error: BaseException) -> bool:
    """Whether an error only means that another process could not be reached."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


class SharedSignal:
    """A number that any process may raise, known to all of them after the same step.

    The exchange runs beside the step, over gloo also where the gradients take NCCL, and is looked at one step later:
    no device and no process waits for it.
    """

    def __init__(self) -> None:
        self._group: Any = dist.new_group(backend="gloo") if world_size() > 1 else None
        self._number = torch.zeros((), dtype=torch.int64)
        self._exchange: Any = None

    def agreed(self, number: int) -> int:
        """The highest number of any process at the last call. All processes must call this after each step."""
        if self._group is None:
            return number
        found = self.last()
        self._number.fill_(number)
        self._exchange = dist.all_reduce(self._number, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        return found

    def last(self) -> int:
        """What the last exchange found; waits for it."""
        if self._exchange is not None:
            self._exchange.wait()
            self._exchange = None
        return int(self._number)


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


@torch.no_grad()
def copy_from_main(module: nn.Module) -> None:
    """Give every process the weights and buffers of the main one."""
    with computing_together():
        if world_size() > 1:
            for value in module.state_dict().values():
                dist.broadcast(value, 0)


def from_main(value: Tensor) -> Tensor:
    """The main process's `value` (of the same shape and type in all) in every process. For random draws."""
    if world_size() > 1:
        value = value.contiguous()
        dist.broadcast(value, 0)
    return value


def sum_over_processes(value: Tensor) -> Tensor:
    """Sum of `value` over all processes, the same bits in each; not differentiable."""
    if world_size() == 1:
        return value
    total = value.clone()
    dist.all_reduce(total)
    return total


@torch.no_grad()
def average_(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its mean over the processes, in one message for each type of number."""
    if world_size() == 1:
        return
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        same = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.flatten() for tensor in same])
        dist.all_reduce(flat)
        parts = (flat / world_size()).split([tensor.numel() for tensor in same])
        for tensor, part in zip(same, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def laid_out(values: Tensor, rows: Tensor, total: int) -> Tensor:
    """The values (n, ...) of all processes, each at its row of a whole of `total` rows, in every process."""
    whole = values.new_zeros(total, *values.shape[1:])
    whole[rows] = values
    return sum_over_processes(whole)


def mean(value: Tensor) -> Tensor:
    """Mean of `value` over all processes, differentiable."""
    if world_size() == 1:
        return value
    total: Tensor = _Sum.apply(value)
    return total / world_size()


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.stack(parts, dim=1).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total[rank() :: world_size()]


def gather(rows: Tensor) -> Tensor:
    """The rows (B, ...) of all processes in the order of the whole batch, differentiable.

    A batch is dealt out like cards (see `Batches`), so row i of process r is row i * world_size + r of the whole.
    """
    if world_size() == 1:
        return rows
    whole: Tensor = _Gather.apply(rows)
    return whole


def own_rows(count: int, device: torch.device) -> Tensor:
    """Places in the whole batch of the `count` rows of this process."""
    return torch.arange(count, device=device) * world_size() + rank()


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


def check_agreement(what: str, text: str) -> None:
    """Stop if the processes do not all have the same text, for example because not every machine sees a file."""
    if world_size() == 1:
        return
    texts: list[str] = [""] * world_size()
    dist.all_gather_object(texts, text)
    other = next((number for number, found in enumerate(texts) if found != texts[0]), None)
    if other is not None:
        raise UserError(
            f"process 0 has {what} {texts[0]} and process {other} has {texts[other]}; all machines must see the same "
            "files, so put data and run directory on a shared disk"
        )
