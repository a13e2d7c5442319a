"""SCAN's and TEMI's losses: closed forms, literal transcriptions, gradients, and what they share with CARL's."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from carl.methods.carl import CARLLoss
from carl.methods.losses import log_assignments, uniform_prior
from carl.methods.neighbour_losses import pointwise_mutual_information, scan_loss, temi_loss


def logits(*shape: int, seed: int = 3) -> Tensor:
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def transcribed_scan(p: Tensor, q: Tensor, weight: float) -> float:
    """SCAN, Eq. 2: -1/|D| sum_X sum_N log <f(X), f(X_k)> + lambda sum_c f'_c log f'_c, f' the mean over X."""
    images, groups = p.shape
    consistency = -sum(math.log(sum(p[i, c] * q[i, c] for c in range(groups))) for i in range(images)) / images
    mean = [sum(p[i, c] for i in range(images)) / images for c in range(groups)]
    return float(consistency + weight * sum(m * math.log(m) for m in mean))


def transcribed_temi(students: Tensor, teachers: Tensor, marginal: Tensor, beta: float) -> float:
    """TEMI, Eq. 6 to 9: for each head the symmetric pmi, weighted by the mean agreement of all heads' teachers."""
    _, pairs, heads, groups = students.shape

    def pmi(i: int, h: int, student: int, teacher: int) -> float:
        terms = [
            float(students[student, i, h, c] * teachers[teacher, i, h, c]) ** beta / float(marginal[h, c])
            for c in range(groups)
        ]
        return math.log(sum(terms))

    total = 0.0
    for i in range(pairs):
        agreement = [sum(teachers[0, i, h, c] * teachers[1, i, h, c] for c in range(groups)) for h in range(heads)]
        weight = float(sum(agreement)) / heads
        for h in range(heads):
            total -= weight * (pmi(i, h, 0, 1) + pmi(i, h, 1, 0)) / 2
    return total / pairs / heads


def test_scan_equals_its_transcription():
    log_p, log_q = log_assignments(logits(2, 7, 5))
    expected = transcribed_scan(log_p.exp(), log_q.exp(), 5.0)
    assert scan_loss(log_p, log_q, 5.0).item() == pytest.approx(expected, abs=1e-6)


def test_scan_of_several_heads_is_the_sum_of_each():
    log_p, log_q = log_assignments(logits(2, 7, 3, 5))
    each = sum(scan_loss(log_p[:, h], log_q[:, h], 5.0) for h in range(3))
    assert torch.allclose(scan_loss(log_p, log_q, 5.0), torch.as_tensor(each))


def test_scan_differs_from_carl_by_a_constant_where_image_and_neighbour_are_the_same():
    energies = logits(9, 6)
    log_p = log_assignments(energies)
    ours = CARLLoss(targets="joint")(energies, energies, 5.0)
    assert (ours - scan_loss(log_p, log_p, 5.0)).item() == pytest.approx(5 * math.log(6), abs=1e-9)


def test_temi_equals_its_transcription():
    students, teachers = log_assignments(logits(2, 6, 3, 4)), log_assignments(logits(2, 6, 3, 4, seed=4))
    marginal = log_assignments(logits(3, 4, seed=5))
    expected = transcribed_temi(students.exp(), teachers.exp(), marginal.exp(), 0.6)
    assert temi_loss(students, teachers, marginal, 0.6).item() == pytest.approx(expected, abs=1e-6)


def test_mutual_information_of_pairs_that_agree_by_chance_is_zero():
    """If each image is assigned like the mean of all, a pair tells nothing: sum_k m_k m_k / m_k = 1."""
    marginal = log_assignments(logits(1, 5))
    same = marginal.expand(4, 1, 5)
    assert pointwise_mutual_information(same, same, marginal, 1.0) == pytest.approx(torch.zeros(4, 1), abs=1e-12)


def test_mutual_information_of_sure_pairs_is_the_logarithm_of_the_groups():
    sure = log_assignments(400 * torch.eye(4, dtype=torch.float64))[:, None]
    even = torch.full((1, 4), -math.log(4), dtype=torch.float64)
    assert pointwise_mutual_information(sure, sure, even, 0.6) == pytest.approx(torch.full((4, 1), math.log(4)))


def test_gradients_of_scan_and_temi_are_those_of_finite_differences():
    energies = logits(2, 4, 2, 3).requires_grad_()
    teachers, marginal = log_assignments(logits(2, 4, 2, 3, seed=4)), log_assignments(logits(2, 3, seed=5))

    def scan(energies: Tensor) -> Tensor:
        return scan_loss(*log_assignments(energies), entropy_weight=5.0)

    def temi(energies: Tensor) -> Tensor:
        return temi_loss(log_assignments(energies), teachers, marginal, 0.6)

    assert torch.autograd.gradcheck(scan, [energies])
    assert torch.autograd.gradcheck(temi, [energies])


def test_pairs_that_disagree_most_still_have_a_finite_loss_and_a_gradient():
    opposed = torch.tensor([[[300.0, 0.0]], [[0.0, 300.0]]])[:, :, None].requires_grad_()  # (2, 1, 1, 2)
    log_p = log_assignments(opposed)
    teachers, even = log_assignments(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))[:, None, None], torch.full((1, 2), 0.5)
    for loss, least in ((scan_loss(log_p[0], log_p[1], 5.0), 0.1), (temi_loss(log_p, teachers, even.log(), 0.6), 0.0)):
        (gradient,) = torch.autograd.grad(loss, opposed, retain_graph=True)
        assert torch.isfinite(loss)
        assert torch.isfinite(gradient).all()
        assert gradient.abs().max() >= least


def test_the_prior_of_several_heads_is_the_sum_of_theirs():
    log_p = log_assignments(logits(2, 7, 3, 5))
    each = sum(uniform_prior(log_p[:, :, h]) for h in range(3))
    assert torch.allclose(uniform_prior(log_p), torch.as_tensor(each))
