"""CARP: its partitions, its loss against a transcription of the authors' code, and its teacher."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from carl.config import resolve
from carl.data.batches.base import Batch
from carl.errors import UserError
from carl.methods.carp import CARP, CarpOptions, random_partition
from tests.methods.examples import PROGRESS, make


def carp(prototypes: int, size: int) -> CARP:
    method = make("carp", prototypes=prototypes, partition_size=size)
    assert isinstance(method, CARP)
    return method


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def objective(method: CARP, energies: Tensor, progress: float = PROGRESS) -> tuple[Tensor, dict[str, Tensor]]:
    """Of energies of V views and two of the teacher, (V + 2, B, K)."""
    views = [torch.zeros(0)] * (len(energies) - 2)
    return method.objective(energies, Batch(views, torch.arange(energies.shape[1])), progress)


def test_a_partition_has_every_prototype_once_and_leaves_a_rest_out():
    groups = random_partition(12, 4, 0, 0.5)
    assert groups.shape == (3, 4)
    assert sorted(groups.flatten().tolist()) == list(range(12))
    rest = random_partition(10, 4, 0, 0.5)
    assert rest.shape == (2, 4)
    assert len(set(rest.flatten().tolist())) == 8


def test_partitions_differ_from_step_to_step_and_between_seeds_and_are_the_same_again():
    first = random_partition(50, 10, 0, 0.25)
    assert torch.equal(first, random_partition(50, 10, 0, 0.25))
    assert not torch.equal(first, random_partition(50, 10, 0, 0.26))
    assert not torch.equal(first, random_partition(50, 10, 1, 0.25))


@pytest.mark.parametrize("views", [2, 4])
def test_the_loss_is_that_of_the_authors_code_written_out(views: int):
    """modules/carp_loss.py: means over views, teacher's views, partitions and images; the epsilon aside."""
    method, energies = carp(12, 4), randn(views + 2, 5, 12)
    groups = random_partition(12, 4, method.seed, PROGRESS)
    p = torch.stack([energies[:, :, group].softmax(dim=2) for group in groups])  # (G, V + 2, B, 4)
    consistency = []
    for i in range(views):
        for j in range(2):
            if i != j:
                agreement = [-math.log(float(p[g, i, n] @ p[g, views + j, n])) for g in range(3) for n in range(5)]
                consistency.append(sum(agreement) / len(agreement))
    mean = p.mean(dim=(1, 2))  # (G, 4)
    divergence = [math.log(4) + sum(float(q) * math.log(float(q)) for q in row) for row in mean]
    loss, figures = objective(method, energies)
    assert figures["consistency"].item() == pytest.approx(sum(consistency) / len(consistency), rel=1e-10)
    assert figures["kl"].item() == pytest.approx(sum(divergence) / 3, rel=1e-10)
    assert loss.item() == pytest.approx(figures["consistency"].item() + figures["kl"].item())


def test_views_that_agree_and_use_all_prototypes_equally_cost_nothing():
    certain = 60.0 * torch.eye(4, dtype=torch.float64)
    loss, _ = objective(carp(4, 4), certain.expand(4, 4, 4))
    assert loss.item() == pytest.approx(0.0, abs=1e-9)


def test_gradients_are_those_of_finite_differences_and_do_not_reach_the_teacher():
    method, energies = carp(6, 3), randn(4, 3, 6).requires_grad_()
    (gradient,) = torch.autograd.grad(objective(method, energies)[0], energies)
    assert not gradient[2:].any()
    assert gradient[:2].abs().max() > 1e-3
    taught = energies[2:].detach()
    student = energies[:2].detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda views: objective(method, torch.cat([views, taught]))[0], student)


def test_a_partition_larger_than_all_prototypes_is_refused():
    given = {"data": {"source": "x", "image_size": 32}, "method": {"prototypes": 10, "partition_size": 11}}
    with pytest.raises(UserError, match="partition_size=11 is over the 10 prototypes; use at most 10"):
        CARP.completed(resolve([given], CarpOptions))


def test_the_teachers_momentum_rises_to_one():
    method = carp(4, 2)
    assert (method.momentum(0.0), method.momentum(1.0)) == (pytest.approx(0.9), pytest.approx(1.0))
