"""Two gloo processes on halves of a batch give the loss and the gradient of one process on the whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from carl import distributed
from carl.methods.losses import assignment_consistency, log_assignments, uniform_prior


def loss_of(logits: Tensor) -> Tensor:
    log_p = log_assignments(logits)
    return assignment_consistency(log_p[0], log_p[1]) + 3.0 * uniform_prior(log_p)


def example() -> Tensor:
    logits = torch.randn(2, 8, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits[:, :, 4] = -2000.0  # a prototype that nobody wants must not make a NaN
    return logits


def half(rank: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    logits = example()[:, rank::2].clone().requires_grad_()
    loss = loss_of(logits)
    (loss / 2).backward()  # DistributedDataParallel averages over the processes
    assert distributed.agreed(f"said by {rank}") == "said by 0"
    torch.save({"loss": distributed.mean(loss.detach()), "gradient": logits.grad}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_equal_one(tmp_path: Path):
    mp.spawn(half, args=(str(tmp_path),), nprocs=2)
    whole = example().requires_grad_()
    loss = loss_of(whole)
    loss.backward()
    assert whole.grad is not None
    for rank in range(2):
        part = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert part["loss"].item() == pytest.approx(loss.item(), rel=1e-12)
        assert torch.allclose(part["gradient"], whole.grad[:, rank::2], rtol=1e-10, atol=1e-14)
