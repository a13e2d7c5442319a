"""Barlow Twins: its loss against the formula, a literal transcription, lightly and numerical gradients."""

from __future__ import annotations

import pytest
import torch
from lightly.loss import BarlowTwinsLoss
from torch import Tensor

from carl.methods.barlow import BarlowTwins, correlations, redundancy_loss
from tests.methods.examples import PROGRESS, make, make_batch


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loss(first: Tensor, second: Tensor, weight: float) -> Tensor:
    invariance, redundancy = redundancy_loss(correlations(first, second), weight)
    return invariance + redundancy


def test_a_view_correlates_with_itself_and_the_loss_is_then_its_redundancy_alone():
    views = randn(400, 3)
    found = correlations(views, views)
    torch.testing.assert_close(found.diagonal(), torch.ones(3, dtype=torch.float64), atol=2e-5, rtol=0)
    invariance, redundancy = redundancy_loss(found, 0.5)
    assert invariance.item() == pytest.approx(0.0, abs=1e-8)
    expected = 0.5 * 2 * sum(float(found[i, j]) ** 2 for i in range(3) for j in range(i))
    assert redundancy.item() == pytest.approx(expected)


def test_uncorrelated_views_cost_one_per_dimension():
    first = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    second = first[[0, 2, 1, 3]]  # dimensions change places, so none agrees with itself and each with the other
    invariance, redundancy = redundancy_loss(correlations(first, second), 1.0)
    assert invariance.item() == pytest.approx(2.0, abs=1e-4)
    assert redundancy.item() == pytest.approx(2.0, abs=1e-4)


def test_the_loss_is_the_formula_written_out():
    """Eq. 1 and 2 with sums over images, plainly; the epsilon of batch norm aside."""
    a, b = randn(7, 4), randn(7, 4, seed=1) + 0.5 * randn(7, 4)

    def c(i: int, j: int) -> float:
        x, y = a[:, i] - a[:, i].mean(), b[:, j] - b[:, j].mean()
        return float(sum(p * q for p, q in zip(x, y, strict=True)) / (sum(x**2) ** 0.5 * sum(y**2) ** 0.5))

    expected = sum((1 - c(i, i)) ** 2 for i in range(4))
    expected += 0.0051 * sum(c(i, j) ** 2 for i in range(4) for j in range(4) if i != j)
    assert loss(a, b, 0.0051).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("weight", [0.0, 0.0051, 1.0])
def test_the_loss_is_lightlys(weight: float):
    a, b = randn(9, 5), randn(9, 5, seed=1)
    assert loss(a, b, weight).item() == pytest.approx(BarlowTwinsLoss(weight)(a, b).item(), rel=1e-9)


def test_gradients_are_those_of_finite_differences_and_of_lightly():
    a, b = randn(5, 3).requires_grad_(), randn(5, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, y: loss(x, y, 0.3), (a, b))
    ours = torch.autograd.grad(loss(a, b, 0.3), (a, b))
    theirs = torch.autograd.grad(BarlowTwinsLoss(0.3)(a, b), (a, b))
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, y)


def test_collapsed_embeddings_have_a_finite_loss_of_one_per_dimension():
    same = torch.ones(6, 4, dtype=torch.float64, requires_grad=True)
    value = loss(same, same, 0.0051)
    value.backward()
    assert value.item() == pytest.approx(4.0)
    assert same.grad is not None
    assert same.grad.isfinite().all()


def test_the_scale_multiplies_the_whole_loss():
    batch = make_batch("barlow")
    whole, part = (make("barlow", loss_scale=scale).eval()(batch, PROGRESS)[0] for scale in (1.0, 0.25))
    assert part.item() == pytest.approx(0.25 * whole.item(), rel=1e-6)


def test_the_paper_preset_has_the_authors_values():
    from tests.methods.test_presets import facts, planned

    config = planned("barlow", facts(), "paper")
    assert isinstance(make("barlow"), BarlowTwins)
    assert (config.optim.name, config.optim.lr, config.optim.weight_decay) == ("lars", 0.2, 1.5e-6)
    assert config.method.model_dump()["redundancy"] == 0.0051
