"""Losses: closed forms, literal transcriptions of equations 2 to 8, an independent implementation, gradients."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from lightly.loss import DCLLoss
from torch import Tensor, nn
from torch.nn import functional as F

from carl.methods.losses import (
    assignment_consistency,
    chance_agreement,
    consistency,
    kl_to_uniform,
    log_assignments,
    uniform_prior,
)
from carl.models.heads import Prototypes
from carl.optim import lambda_schedule


def random_logits(views: int = 2, batch: int = 6, prototypes: int = 5, scale: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return scale * torch.randn(views, batch, prototypes, generator=generator, dtype=torch.float64)


# Closed forms


def test_consistency_is_zero_for_two_sure_views_of_the_same_prototype():
    sure = log_assignments(torch.tensor([[200.0, 0.0, 0.0]]))
    assert assignment_consistency(sure, sure).item() == pytest.approx(0.0, abs=1e-6)


def test_consistency_is_ln_k_for_flat_assignments():
    flat = log_assignments(torch.zeros(4, 7))
    assert assignment_consistency(flat, flat).item() == pytest.approx(math.log(7), abs=1e-6)


def test_consistency_of_opposed_sure_views_grows_with_their_logits_instead_of_being_clamped():
    first = log_assignments(torch.tensor([[1000.0, 0.0]]))
    second = log_assignments(torch.tensor([[0.0, 1000.0]]))
    assert assignment_consistency(first, second).item() == pytest.approx(1000.0 - math.log(2), rel=1e-6)


def test_prior_is_zero_when_all_prototypes_are_used_equally():
    assert kl_to_uniform(torch.full((8,), 1 / 8).log()).item() == pytest.approx(0.0, abs=1e-6)


def test_prior_is_ln_k_when_one_prototype_takes_everything():
    mean = log_assignments(torch.tensor([300.0, 0.0, 0.0, 0.0]))
    assert kl_to_uniform(mean).item() == pytest.approx(math.log(4), abs=1e-6)


def test_prior_sees_one_hot_rows_that_cover_all_prototypes_as_uniform():
    log_p = log_assignments(200 * torch.eye(4)).expand(2, 4, 4)
    assert uniform_prior(log_p, "all").item() == pytest.approx(0.0, abs=1e-5)


def test_prior_over_each_view_sees_what_the_mean_over_all_views_hides():
    # Each view collapses, on a prototype of its own: together they look balanced.
    log_p = torch.stack(
        [log_assignments(torch.tensor([[90.0, 0.0]] * 3)), log_assignments(torch.tensor([[0.0, 90.0]] * 3))]
    )
    assert uniform_prior(log_p, "all").item() == pytest.approx(0.0, abs=1e-5)
    assert uniform_prior(log_p, "each").item() == pytest.approx(math.log(2), abs=1e-5)


# Literal transcription of equations 2 to 8


def transcribed_loss(z_a: list[list[float]], z_b: list[list[float]], c: list[list[float]], lam: float) -> float:
    """Equations 2 to 7 with loops and Python numbers."""
    batch, count = len(z_a), len(c)

    def energies(z: list[float]) -> list[float]:  # Eq. 2
        return [sum(z[d] * c[j][d] for d in range(len(z))) for j in range(count)]

    def softmax(q: list[float]) -> list[float]:  # Eq. 3
        return [math.exp(q[k]) / sum(math.exp(q[j]) for j in range(count)) for k in range(count)]

    p_a = [softmax(energies(z)) for z in z_a]
    p_b = [softmax(energies(z)) for z in z_b]
    total = 0.0
    for i in range(batch):  # Eq. 4
        total += math.log(sum(p_a[i][k] * p_b[i][k] for k in range(count)))
    consistent = -total / batch
    kl = math.log(count)  # Eq. 5
    for k in range(count):
        mean = sum(p[k] for p in p_a + p_b) / (2 * batch)  # Eq. 6, over both views
        kl += mean * math.log(mean)
    return consistent + lam * kl  # Eq. 7


def test_loss_equals_a_literal_transcription_of_equations_2_to_7():
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(2, 6, 3, generator=generator, dtype=torch.float64)
    prototypes = Prototypes(3, 5).double()
    log_p = log_assignments(torch.stack([prototypes(z[0]), prototypes(z[1])]))
    ours = assignment_consistency(log_p[0], log_p[1]) + 1.7 * uniform_prior(log_p)
    theirs = transcribed_loss(z[0].tolist(), z[1].tolist(), prototypes.linear.weight.tolist(), 1.7)
    assert ours.item() == pytest.approx(theirs, rel=1e-10)


def test_lambda_equals_a_literal_transcription_of_equation_8():
    def transcribed(e: int, a: float, b: float, duration: int) -> float:
        return b - (b - a) / duration * e if e <= duration else a

    for epoch in range(151):
        ours = lambda_schedule(epoch, start=4.0, end=1.5, epochs=100)
        assert ours == pytest.approx(transcribed(epoch, 1.5, 4.0, 100), rel=1e-12)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "exponential"])
def test_every_decay_goes_from_start_to_end_and_stays_there(schedule: str):
    values = [lambda_schedule(e, 4.0, 1.5, 10, schedule) for e in range(15)]
    assert values[0] == pytest.approx(4.0)
    assert values[10:] == pytest.approx([1.5] * 5)
    assert all(a > b for a, b in pairwise(values[:11]))


def test_constant_schedule_keeps_its_start():
    assert [lambda_schedule(e, 3.0, 1.0, 10, "constant") for e in (0, 5, 50)] == [3.0, 3.0, 3.0]


# An independent implementation: SCAN's loss (Van Gansbeke et al. 2020)


class ScanLoss(nn.Module):
    """SCAN, Eq. 2: -mean log <p, q> minus `weight` times the entropy of the mean assignment of the anchors."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight, self.bce = weight, nn.BCELoss()

    def forward(self, anchors: Tensor, neighbours: Tensor) -> Tensor:
        p, q = anchors.softmax(1), neighbours.softmax(1)
        batch, count = p.shape
        similarity = torch.bmm(p.view(batch, 1, count), q.view(batch, count, 1)).squeeze()
        mean = p.mean(0)
        return self.bce(similarity, torch.ones_like(similarity)) + self.weight * (mean * mean.log()).sum()


def test_loss_is_scans_plus_lambda_ln_k_when_the_mean_is_that_of_the_anchors():
    logits = random_logits()
    log_p = log_assignments(logits)
    ours = assignment_consistency(log_p[0], log_p[1]) + 5.0 * uniform_prior(log_p[:1])
    assert (ours - 5.0 * math.log(5)).item() == pytest.approx(ScanLoss(5.0)(logits[0], logits[1]).item(), rel=1e-9)


# Gradients


@pytest.mark.parametrize("mean_over", ["all", "each"])
def test_gradients_of_both_terms_are_right_by_finite_differences(mean_over: str):
    def loss(logits: Tensor) -> Tensor:
        log_p = log_assignments(logits)
        return assignment_consistency(log_p[0], log_p[1]) + 2.0 * uniform_prior(log_p, mean_over)

    assert torch.autograd.gradcheck(loss, (random_logits().requires_grad_(),))


def gradient(targets: str) -> Tensor:
    logits = random_logits().requires_grad_()
    log_p = log_assignments(logits)
    consistency(log_p[0], log_p[1], targets).backward()
    assert logits.grad is not None
    return logits.grad


def test_sum_of_detached_targets_has_the_gradient_of_the_joint_loss_and_the_average_half_of_it():
    assert torch.allclose(gradient("sum"), gradient("joint"), rtol=1e-10)
    assert torch.allclose(2 * gradient("average"), gradient("joint"), rtol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("mean_over", ["all", "each"])
def test_gradients_are_finite_with_logits_of_a_thousand(dtype: torch.dtype, mean_over: str):
    logits = torch.zeros(2, 4, 6, dtype=dtype)
    logits[0, :, 0], logits[1, :, 1], logits[:, :, 2] = 1000, 1000, -1000
    logits.requires_grad_()
    log_p = log_assignments(logits)
    loss = assignment_consistency(log_p[0], log_p[1]) + 4.0 * uniform_prior(log_p, mean_over)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad.abs().sum() > 0  # the pairs that disagree most still pull


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_energies_and_loss_are_float32_under_autocast(dtype: torch.dtype):
    prototypes = Prototypes(8, 4)
    z = (1000 * torch.randn(5, 8, generator=torch.Generator().manual_seed(0))).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        half = nn.Linear(8, 8, bias=False)(z)
        energies = prototypes(half)
        log_p = log_assignments(energies)
        loss = assignment_consistency(log_p, log_p.flip(0)) + uniform_prior(log_p[None])
    assert half.dtype == dtype
    assert energies.dtype == torch.float32
    loss.backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()


# Ours: agreement in each of several parts, and relative to chance


def in_parts(images: int = 3, parts: int = 2, prototypes: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(2, images, parts, prototypes, generator=generator, dtype=torch.float64)


def transcribed_beyond_chance(log_p: Tensor) -> float:
    """-log of agreement in all parts, plus log of the mean agreement with views of other images, in loops."""
    p = log_p.exp().tolist()
    views, images, parts, count = log_p.shape

    def agreement(v: int, i: int, w: int, j: int) -> float:
        return math.prod(sum(p[v][i][g][k] * p[w][j][g][k] for k in range(count)) for g in range(parts))

    total = -sum(math.log(agreement(0, i, 1, i)) for i in range(images)) / images
    for v in range(views):
        for i in range(images):
            others = [agreement(v, i, w, j) for w in range(views) for j in range(images) if j != i]
            total += math.log(sum(others) / len(others)) / (views * images)
    return total


def test_agreement_in_parts_relative_to_chance_equals_a_literal_transcription():
    log_p = log_assignments(in_parts())
    found = assignment_consistency(log_p[0], log_p[1]) + chance_agreement(log_p)
    assert found.item() == pytest.approx(transcribed_beyond_chance(log_p), rel=1e-10)


def test_relative_to_chance_any_collapse_is_worth_nothing():
    for one in (torch.zeros(7), torch.tensor([50.0, 0, 0, 0, 0, 0, 0]), torch.arange(7.0)):
        log_p = log_assignments(one.double().expand(2, 5, 3, 7))
        assert (assignment_consistency(log_p[0], log_p[1]) + chance_agreement(log_p)).item() == pytest.approx(
            0, abs=1e-9
        )


def test_an_image_alone_has_no_chance_to_be_compared_with():
    assert chance_agreement(log_assignments(in_parts(images=1))).item() == 0


def test_the_gradient_relative_to_chance_is_right_by_finite_differences():
    assert torch.autograd.gradcheck(lambda x: chance_agreement(log_assignments(x)), (in_parts().requires_grad_(),))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_chance_and_its_gradient_are_finite_for_sure_assignments(dtype: torch.dtype):
    logits = torch.zeros(2, 4, 2, 6, dtype=dtype)
    logits[:, torch.arange(4), :, torch.arange(4)] = 1000
    logits.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype != torch.float32):
        loss = chance_agreement(log_assignments(logits))
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_with_many_prototypes_in_parts_agreement_relative_to_chance_is_decoupled_contrast():
    """Prototypes of standard deviation s make exp(s^2 cos) of agreement: lightly's DCL at temperature 1 / s^2."""
    torch.manual_seed(0)
    images, parts, s, count = 6, 4, 1.5, 100_000
    prototypes = Prototypes(8, count, embedding_norm="l2", scale=s, parts=parts)
    z = F.normalize(torch.randn(2 * images, 8), dim=1)
    with torch.no_grad():
        log_p = log_assignments(prototypes.by_part(z).unflatten(0, (2, images)))
        found = assignment_consistency(log_p[0], log_p[1]) + chance_agreement(log_p)
    # lightly takes the sum over the other images' views where ours is their mean
    expected = DCLLoss(temperature=1 / s**2)(z[:images], z[images:]) - math.log(2 * images - 2)
    assert found.item() == pytest.approx(expected.item(), abs=0.02)
