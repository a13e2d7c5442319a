"""The two thresholds of the prior's weight, against direct minimisation and the second order around uniform."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from carl.config import Config, resolve
from carl.data.facts import DataFacts
from carl.errors import UserError
from carl.methods.carl import CARL, CarlOptions, examine_start
from carl.methods.health import measure_health
from carl.methods.prior import STABLE, barrier, prior_threshold, weight_that_holds


def constant_loss(logits: Tensor, weight: float) -> Tensor:
    """Loss where every view of every image gets softmax(logits): -log <p, p> + lambda KL(p || uniform)."""
    log_p = logits.log_softmax(-1)
    p = log_p.exp()
    return -(p * p).sum(-1).log() + weight * (math.log(p.shape[-1]) + (p * log_p).sum(-1))


def minimum(prototypes: int, weight: float) -> float:
    """The lowest loss that gradient descent finds from many starts: one heavy, several heavy, random."""
    torch.manual_seed(0)
    starts = [2.0 * torch.randn(24, prototypes, dtype=torch.float64)]
    for heavy in (1, 2, 3):
        start = torch.zeros(4, prototypes, dtype=torch.float64)
        start[:, :heavy] = torch.tensor([1.0, 2.5, 4.0, 7.0], dtype=torch.float64)[:, None]
        starts.append(start)
    logits = torch.cat(starts).requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=0.05)
    for _ in range(1500):
        optimizer.zero_grad()
        constant_loss(logits, weight).sum().backward()
        optimizer.step()
    return float(constant_loss(logits.detach(), weight).min())


def descend(start: Tensor, weight: float) -> Tensor:
    """Where plain gradient descent leads from the assignment `start`."""
    logits = start.log().clone().requires_grad_()
    optimizer = torch.optim.SGD([logits], lr=1.0)
    for _ in range(8000):
        optimizer.zero_grad()
        constant_loss(logits, weight).backward()
        optimizer.step()
    return logits.detach().softmax(0)


def heavy_start(prototypes: int, heavy: float) -> Tensor:
    p = torch.full((prototypes,), (1 - heavy) / (prototypes - 1), dtype=torch.float64)
    p[0] = heavy
    return p


@pytest.mark.parametrize(
    ("prototypes", "expected"),
    [(10, 2.4), (30, 3.0), (100, 4.1), (300, 5.7), (1000, 8.5), (3000, 12.4), (10_000, 19.4)],
)
def test_the_threshold_has_the_values_found_by_hand(prototypes: int, expected: float) -> None:
    assert prior_threshold(prototypes) == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize("prototypes", [3, 10, 30, 100])
def test_under_the_threshold_a_constant_assignment_beats_uniform_and_over_it_none_does(prototypes: int) -> None:
    threshold, uniform = prior_threshold(prototypes), math.log(prototypes)
    assert minimum(prototypes, threshold + 0.03) > uniform - 1e-6
    assert minimum(prototypes, threshold - 0.03) < uniform - 1e-4


@pytest.mark.parametrize("weight", [1.5, 1.99, 2.01, 3.0])
def test_uniform_is_a_minimum_exactly_when_lambda_is_over_two(weight: float) -> None:
    logits = torch.zeros(20, dtype=torch.float64, requires_grad=True)
    hessian = torch.autograd.functional.hessian(lambda x: constant_loss(x, weight), logits)
    curvature = torch.linalg.eigvalsh(hessian)
    curved = curvature[curvature.abs() > 1e-5]
    assert len(curved) == 19  # along all logits alike nothing changes
    assert bool((curved > 0).all()) == (weight > STABLE)
    assert bool((curved < 0).all()) == (weight < STABLE)


@pytest.mark.slow
def test_the_barrier_separates_starts_that_return_to_uniform_from_those_that_do_not() -> None:
    top = barrier(30, 2.5)
    assert 1 / 30 < top < 0.2
    assert float(descend(heavy_start(30, 0.9 * top), 2.5).max()) == pytest.approx(1 / 30, rel=0.02)
    assert float(descend(heavy_start(30, 1.1 * top), 2.5).max()) > 0.15
    assert barrier(30, 1.9) == pytest.approx(1 / 30)  # below 2 nothing is held
    assert barrier(30, 5.0) == 1.0  # far above, everything is


@pytest.mark.slow
@pytest.mark.parametrize("heaviest", [0.1, 0.3])
def test_a_peaked_start_returns_to_uniform_from_the_weight_that_holds_it_on(heaviest: float) -> None:
    weight = weight_that_holds(30, heaviest)
    assert float(descend(heavy_start(30, heaviest), weight + 0.05).max()) == pytest.approx(1 / 30, rel=0.05)
    assert float(descend(heavy_start(30, heaviest), weight - 0.05).max()) > 0.05


def test_above_the_threshold_the_basin_of_a_heavy_prototype_is_there_for_a_while() -> None:
    for count in (10, 100, 1000):
        gone = weight_that_holds(count)
        assert prior_threshold(count) < gone < 1.2 * prior_threshold(count)
        assert barrier(count, gone + 1e-3) == 1.0
        assert barrier(count, gone - 1e-2) < 1.0
    assert weight_that_holds(100, 0.01) == STABLE  # a flat start


def test_one_prototype_has_no_threshold() -> None:
    with pytest.raises(UserError, match="use 2 or more"):
        prior_threshold(1)


def carl_config(targets: str = "joint", **options: float) -> Config:
    return resolve([{"data": {"source": "shapes"}, "method": {"targets": targets, **options}}], CarlOptions)


def test_a_start_of_two_or_less_is_warned_of_before_training() -> None:
    facts = DataFacts("shapes", 1000, 3, 32, 10)
    [text] = CARL.remarks(carl_config(prior_start=1.0, prior_end=1.0, prototypes=100), facts)
    assert "lambda starts at 1" in text
    assert "--prior-start above 2" in text
    assert CARL.remarks(carl_config(prior_start=2.0, prior_end=1.0, prototypes=100), facts)  # level, and not held
    averaged = carl_config(prior_start=2.0, prior_end=1.0, prototypes=100, targets="average")
    assert CARL.remarks(averaged, facts) == []  # as the paper has it on STL-10
    assert "from 4.2 on" in text  # 4.14, and 4.1 would not do
    assert CARL.remarks(carl_config(prior_start=2.1), facts) == []
    assert CARL.remarks(carl_config(prior_start=1.1, targets="average"), facts) == []  # weighs double
    [text] = CARL.remarks(carl_config(prior_start=0.5, targets="average"), facts)
    assert "--prior-start above 1" in text


def test_a_peaked_start_under_the_threshold_is_remarked_on_and_a_flat_one_is_not() -> None:
    peaked = torch.zeros(50, 100)
    peaked[:, 0] = 3.0
    flat = 0.1 * torch.randn(50, 100, generator=torch.Generator().manual_seed(0))
    health = {name: measure_health(x.log_softmax(1), x.log_softmax(1)) for name, x in (("p", peaked), ("f", flat))}
    [finding] = examine_start(health["p"], 4.0)
    assert finding.kind == "peaked start"
    assert "--prior-start 4.5" in finding.remedy
    assert examine_start(health["p"], 4.5) == []  # the remedy cures
    [finding] = examine_start(health["p"], 4.2)  # uniform is the lowest, and this start does not get there
    assert "--prior-start 4.5" in finding.remedy
    [finding] = examine_start(health["p"], 2.0, factor=2.0)
    assert "--prior-start 2.3" in finding.remedy
    assert examine_start(health["f"], 4.0) == []
