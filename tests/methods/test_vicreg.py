"""VICReg and its loss for many views: against the formula, a literal transcription, lightly and finite differences."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from lightly.loss import VICRegLoss, emp_ssl_loss
from torch import Tensor

from carl.data.batches.base import Batch
from carl.methods.vicreg import VICReg, coding_rate, covariance, invariance, similarity, variance
from tests.methods.examples import PROGRESS, make, make_batch


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def vicreg(**options: Any) -> VICReg:
    method = make("vicreg", **options)
    assert isinstance(method, VICReg)
    return method


def objective(method: VICReg, views: Tensor) -> Tensor:
    return method.objective(views, Batch([], torch.arange(views.shape[1])), PROGRESS)[0]


def test_views_that_are_equal_spread_and_uncorrelated_cost_nothing():
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    assert objective(vicreg(), torch.stack([corners] * 3)).item() == pytest.approx(0.0, abs=1e-6)


def test_embeddings_that_are_all_one_cost_the_whole_variance():
    views = torch.ones(2, 6, 3, dtype=torch.float64)
    assert variance(views).item() == pytest.approx(1 - math.sqrt(1e-4))
    assert (invariance(views).item(), covariance(views).item()) == (0.0, 0.0)


@pytest.mark.parametrize("weights", [(25.0, 25.0, 1.0), (1.0, 2.0, 3.0)])
def test_two_views_have_lightlys_loss_and_gradient(weights: tuple[float, float, float]):
    method = vicreg(**dict(zip(("invariance", "variance", "covariance"), weights, strict=True)))
    found = []
    for loss in (lambda v: objective(method, v), lambda v: VICRegLoss(*weights)(v[0], v[1])):
        views = (0.5 * randn(2, 9, 5)).requires_grad_()
        value = loss(views)
        found.append((value.item(), torch.autograd.grad(value, views)[0]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-9)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-7, atol=1e-10)


def test_many_views_have_the_terms_of_a_literal_transcription():
    """Eq. 1 to 6 with loops; invariance is the mean over all pairs of views."""
    views = 0.6 * randn(4, 7, 3)
    pairs = [(a, b) for a in range(4) for b in range(a)]
    distances = [float(((views[a, i] - views[b, i]) ** 2).sum()) / 3 for a, b in pairs for i in range(7)]
    assert invariance(views).item() == pytest.approx(sum(distances) / len(distances), rel=1e-10)
    gaps, squares = [], []
    for view in views:
        mean = [sum(float(row[d]) for row in view) / 7 for d in range(3)]
        c = [
            [sum((float(r[i]) - mean[i]) * (float(r[j]) - mean[j]) for r in view) / 6 for j in range(3)]
            for i in range(3)
        ]
        gaps += [max(0.0, 1 - math.sqrt(c[d][d] + 1e-4)) for d in range(3)]
        squares.append(sum(c[i][j] ** 2 for i in range(3) for j in range(3) if i != j) / 3)
    assert variance(views).item() == pytest.approx(sum(gaps) / len(gaps), rel=1e-10)
    assert covariance(views).item() == pytest.approx(2 * sum(squares) / 4, rel=1e-10)


def test_the_coding_rate_is_lightlys_and_is_made_large():
    """lightly 1.6 adds the rate where EMP-SSL takes it away, so its parts are compared and not its sum."""
    directions = torch.nn.functional.normalize(randn(4, 9, 5), dim=2)
    rate = coding_rate(directions, 0.2).item()
    with torch.no_grad():
        assert rate == pytest.approx(emp_ssl_loss.tcr_loss(directions.float(), 0.2).item(), rel=1e-5)
        assert similarity(directions).item() == pytest.approx(
            -emp_ssl_loss.invariance_loss(directions).item(), rel=1e-9
        )
    expected = -200 * similarity(directions).item() - rate
    assert objective(vicreg(regulariser="coding-rate"), 3 * directions).item() == pytest.approx(expected, rel=1e-9)
    assert coding_rate(directions[:, :1].expand_as(directions), 0.2).item() < rate  # all the same: less


def test_orthogonal_directions_have_the_coding_rate_worked_out_by_hand():
    directions = torch.eye(4, dtype=torch.float64)[None]
    assert coding_rate(directions, 0.5).item() == pytest.approx(0.5 * 4 * math.log(1 + 4 / (4 * 0.5)))


@pytest.mark.parametrize("regulariser", ["variance", "coding-rate"])
def test_gradients_are_those_of_finite_differences(regulariser: str):
    method = vicreg(regulariser=regulariser, similarity=2.0)
    assert torch.autograd.gradcheck(lambda v: objective(method, v), (0.5 * randn(3, 6, 3)).requires_grad_())


@pytest.mark.parametrize("regulariser", ["variance", "coding-rate"])
def test_all_views_of_a_batch_take_part(regulariser: str):
    method, batch = vicreg(regulariser=regulariser, loss_scale=0.5), make_batch("vicreg", views="swav_multicrop")
    loss, figures = method(batch, PROGRESS)
    assert len(method.represent(batch)) == 8
    total = sum(value.item() for key, value in figures.items() if key not in ("loss", "spread"))
    assert loss.item() == pytest.approx(0.5 * total, rel=1e-5)
