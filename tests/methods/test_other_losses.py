"""Losses of the other methods: closed forms, literal transcriptions, lightly, gradients, and inputs at the edge."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from lightly.loss import NegativeCosineSimilarity, NTXentLoss, SwaVLoss
from lightly.loss.swav_loss import sinkhorn as lightly_sinkhorn
from torch import Tensor
from torch.nn import functional as F

from carl.methods.losses import (
    concentration,
    cross_entropy_of_codes,
    info_nce,
    nt_xent,
    proto_nce,
    regression,
    sinkhorn,
    unit,
)

TEMPERATURES = pytest.mark.parametrize("temperature", [0.07, 0.2, 1.0])
HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def cos(a: list[float], b: list[float]) -> float:
    return dot(a, b) / math.sqrt(dot(a, a) * dot(b, b))


# SimCLR, Eq. 1


def transcribed_nt_xent(first: Tensor, second: Tensor, temperature: float) -> float:
    """Views 2k-1 and 2k belong together; the loss is the mean of l(i, j) over all 2N ordered pairs (Algorithm 1)."""
    z = [row for pair in zip(first.tolist(), second.tolist(), strict=True) for row in pair]

    def pair_loss(i: int, j: int) -> float:
        others = sum(math.exp(cos(z[i], z[k]) / temperature) for k in range(len(z)) if k != i)
        return -math.log(math.exp(cos(z[i], z[j]) / temperature) / others)

    pairs = [(k, k + 1) for k in range(0, len(z), 2)]
    return sum(pair_loss(i, j) + pair_loss(j, i) for i, j in pairs) / len(z)


@TEMPERATURES
def test_nt_xent_equals_a_literal_transcription_of_simclrs_equation_1(temperature: float):
    first, second = randn(6, 4), randn(6, 4, seed=1)
    found = nt_xent(first, second, temperature).item()
    assert found == pytest.approx(transcribed_nt_xent(first, second, temperature), abs=1e-6)


@TEMPERATURES
def test_nt_xent_equals_lightlys(temperature: float):
    first, second = randn(16, 8), randn(16, 8, seed=1)
    theirs = NTXentLoss(temperature=temperature, memory_bank_size=0)(first, second)
    assert nt_xent(first, second, temperature).item() == pytest.approx(theirs.item(), abs=1e-6)


def test_nt_xent_of_identical_embeddings_is_the_logarithm_of_the_number_of_other_views():
    assert nt_xent(torch.ones(5, 3), torch.ones(5, 3), 0.2).item() == pytest.approx(math.log(9), abs=1e-6)


def test_nt_xent_of_orthogonal_images_is_known_in_closed_form():
    eye = torch.eye(4, dtype=torch.float64)
    assert nt_xent(eye, eye, 0.5).item() == pytest.approx(math.log(1 + 6 * math.exp(-2)), abs=1e-9)


# MoCo, Eq. 1


def transcribed_info_nce(queries: Tensor, keys: Tensor, negatives: Tensor, temperature: float) -> float:
    total = 0.0
    for q, positive in zip(queries.tolist(), keys.tolist(), strict=True):
        scores = [cos(q, k) / temperature for k in [positive, *negatives.tolist()]]
        total -= math.log(math.exp(scores[0]) / sum(math.exp(s) for s in scores))
    return total / len(queries)


@TEMPERATURES
def test_info_nce_equals_a_literal_transcription_of_mocos_equation_1(temperature: float):
    queries, keys, negatives = randn(6, 4), randn(6, 4, seed=1), unit(randn(11, 4, seed=2))
    found = info_nce(queries, keys, negatives, temperature).item()
    assert found == pytest.approx(transcribed_info_nce(queries, keys, negatives, temperature), abs=1e-6)


@TEMPERATURES
def test_info_nce_equals_lightlys_with_a_memory_bank(temperature: float):
    queries, keys = randn(8, 4), randn(8, 4, seed=1)
    theirs = NTXentLoss(temperature=temperature, memory_bank_size=(24, 4)).double()
    expected = theirs(queries, keys)  # makes its bank at the first call; without gradients it is not updated
    bank = theirs.memory_bank.bank
    assert bank.shape == (24, 4)
    assert info_nce(queries, keys, bank, temperature).item() == pytest.approx(expected.item(), abs=1e-6)


def test_info_nce_is_the_logarithm_of_one_plus_the_negatives_when_nothing_differs():
    same = unit(torch.ones(7, 3))
    assert info_nce(same[:4], same[:4], same, 0.2).item() == pytest.approx(math.log(8), abs=1e-6)


def test_keys_and_queue_carry_no_gradient():
    queries, keys = randn(6, 4).requires_grad_(), randn(6, 4, seed=1).requires_grad_()
    info_nce(queries, keys, unit(randn(5, 4, seed=2)), 0.2).backward()
    assert queries.grad is not None
    assert keys.grad is None


# BYOL, Eq. 2


def test_regression_equals_a_literal_transcription_of_byols_equation_2():
    predictions, targets = randn(6, 4), randn(6, 4, seed=1)
    total = 0.0
    for q, z in zip(predictions.tolist(), targets.tolist(), strict=True):
        q_bar, z_bar = [x / math.sqrt(dot(q, q)) for x in q], [x / math.sqrt(dot(z, z)) for x in z]
        total += sum((a - b) ** 2 for a, b in zip(q_bar, z_bar, strict=True))
    assert regression(predictions, targets).item() == pytest.approx(total / 6, abs=1e-6)


def test_regression_is_two_plus_twice_lightlys_negative_cosine_similarity():
    predictions, targets = randn(16, 8), randn(16, 8, seed=1)
    theirs = NegativeCosineSimilarity()(predictions, targets)
    assert regression(predictions, targets).item() == pytest.approx(2 + 2 * theirs.item(), abs=1e-6)


def test_regression_is_0_for_equal_directions_2_for_orthogonal_and_4_for_opposed_ones():
    one, other = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    assert regression(one, 5 * one).item() == pytest.approx(0.0, abs=1e-6)
    assert regression(one, other).item() == pytest.approx(2.0, abs=1e-6)
    assert regression(one, -one).item() == pytest.approx(4.0, abs=1e-6)


def test_targets_of_the_regression_carry_no_gradient():
    predictions, targets = randn(6, 4).requires_grad_(), randn(6, 4, seed=1).requires_grad_()
    regression(predictions, targets).backward()
    assert predictions.grad is not None
    assert targets.grad is None


# SwAV, Eq. 2 to 5


def transcribed_sinkhorn(scores: Tensor, epsilon: float, iterations: int) -> list[list[float]]:
    """Q = diag(u) exp(C'Z / epsilon) diag(v): rows of Q, the prototypes, sum to 1/K, columns, the images, to 1/B."""
    images, prototypes = scores.shape
    q = [[math.exp(scores[b, k].item() / epsilon) for b in range(images)] for k in range(prototypes)]
    for _ in range(iterations):
        for k in range(prototypes):
            total = sum(q[k])
            q[k] = [value / total / prototypes for value in q[k]]
        for b in range(images):
            total = sum(q[k][b] for k in range(prototypes))
            for k in range(prototypes):
                q[k][b] /= total * images
    return [[images * q[k][b] for k in range(prototypes)] for b in range(images)]


@pytest.mark.parametrize("iterations", [1, 3, 10])
@pytest.mark.parametrize("epsilon", [0.03, 0.05, 0.5])
def test_sinkhorn_equals_a_literal_transcription_and_lightlys(epsilon: float, iterations: int):
    scores = unit(randn(8, 4)) @ unit(randn(5, 4, seed=1)).T
    found = sinkhorn(scores, epsilon, iterations)
    theirs = torch.tensor(transcribed_sinkhorn(scores, epsilon, iterations), dtype=torch.float64)
    torch.testing.assert_close(found, theirs, atol=1e-6, rtol=0)
    torch.testing.assert_close(found, lightly_sinkhorn(scores, iterations, epsilon), atol=1e-6, rtol=0)


def test_codes_sum_to_one_and_in_the_end_all_prototypes_get_the_same_part_of_the_batch():
    scores = unit(randn(12, 4)) @ unit(randn(3, 4, seed=1)).T
    codes = sinkhorn(scores, 0.05, 500)
    torch.testing.assert_close(codes.sum(1), torch.ones(12, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(codes.sum(0), torch.full((3,), 4.0, dtype=torch.float64), atol=1e-6, rtol=0)


def test_a_common_shift_of_all_scores_does_not_change_the_codes():
    scores = randn(8, 5)
    torch.testing.assert_close(sinkhorn(scores, 0.05, 3), sinkhorn(scores + 1000, 0.05, 3), atol=1e-9, rtol=0)


def swapped_prediction(large: list[Tensor], small: list[Tensor], queues: list[Tensor] | None) -> Tensor:
    """SwAV's loss put together from our two functions, as its paper does in section 3.2."""
    views, terms = [*large, *small], []
    for place, scores in enumerate(large):
        everything = scores if queues is None else torch.cat([scores, queues[place]])
        code = sinkhorn(everything, 0.05, 3)[: len(scores)]
        terms += [cross_entropy_of_codes(code, other, 0.1) for number, other in enumerate(views) if number != place]
    return torch.stack(terms).mean()


@pytest.mark.parametrize("small", [0, 6])
@pytest.mark.parametrize("queue", [0, 20])
def test_swapped_prediction_equals_lightlys_with_and_without_small_views_and_queue(small: int, queue: int):
    prototypes = unit(randn(7, 4, seed=99)).T
    views = [unit(randn(8, 4, seed=seed)) @ prototypes for seed in range(2 + small)]
    queues = [unit(randn(queue, 4, seed=50 + seed)) @ prototypes for seed in range(2)] if queue else None
    theirs = SwaVLoss()(views[:2], views[2:], queues)
    assert swapped_prediction(views[:2], views[2:], queues).item() == pytest.approx(theirs.item(), abs=1e-6)


@TEMPERATURES
def test_cross_entropy_of_codes_equals_a_literal_transcription_of_swavs_equation_2(temperature: float):
    codes, scores = randn(5, 4).softmax(1), randn(5, 4, seed=1)
    total = 0.0
    for q, s in zip(codes.tolist(), scores.tolist(), strict=True):
        whole = sum(math.exp(x / temperature) for x in s)
        total -= sum(q[k] * math.log(math.exp(s[k] / temperature) / whole) for k in range(4))
    assert cross_entropy_of_codes(codes, scores, temperature).item() == pytest.approx(total / 5, abs=1e-6)


# PCL, Eq. 11 and 12


def transcribed_proto_nce(
    v: list[list[float]], c: list[list[float]], phi: list[float], s: list[int], negatives: list[int]
) -> float:
    """The inner sum over prototypes of Eq. 11 for one clustering: j = 0 is the image's own, then r negatives."""
    total = 0.0
    for i, own in enumerate(s):
        chosen = [own, *[j for j in negatives if j != own]]
        scores = [math.exp(cos(v[i], c[j]) / phi[j]) for j in chosen]
        total -= math.log(scores[0] / sum(scores))
    return total / len(v)


def clustered() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    own = torch.tensor([0, 3, 3, 1, 6, 2])
    return randn(6, 4), unit(randn(7, 4, seed=1)), 0.1 + randn(7, seed=2).abs(), own


@pytest.mark.parametrize("others", [None, [5, 4, 0], [3, 1, 6, 2, 0, 5]])
def test_proto_nce_equals_a_literal_transcription_of_pcls_equation_11(others: list[int] | None):
    embeddings, centroids, phi, own = clustered()
    drawn = None if others is None else torch.tensor(others)
    found = proto_nce(embeddings, centroids, phi, own, drawn)
    negatives = list(range(7)) if others is None else others
    theirs = transcribed_proto_nce(embeddings.tolist(), centroids.tolist(), phi.tolist(), own.tolist(), negatives)
    assert found.item() == pytest.approx(theirs, abs=1e-6)


def test_all_clusters_drawn_as_negatives_are_the_loss_without_drawing():
    embeddings, centroids, phi, own = clustered()
    drawn = proto_nce(embeddings, centroids, phi, own, torch.randperm(7))
    assert drawn.item() == pytest.approx(proto_nce(embeddings, centroids, phi, own).item(), abs=1e-9)


def test_with_one_scale_for_all_clusters_proto_nce_is_a_cross_entropy():
    embeddings, centroids, _, own = clustered()
    expected = F.cross_entropy(unit(embeddings) @ centroids.T / 0.2, own)
    found = proto_nce(embeddings, centroids, torch.full((7,), 0.2, dtype=torch.float64), own)
    assert found.item() == pytest.approx(expected.item(), abs=1e-9)


def percentile(values: list[float], share: float) -> float:
    """Linear between the two nearest of the sorted values, as numpy's."""
    values, place = sorted(values), share * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (place - low) * (values[high] - values[low])


def transcribed_concentration(
    gaps: list[float], own: list[int], clusters: int, temperature: float, alpha: float
) -> list[float]:
    """Eq. 12, and what the authors' code does with it; `gaps` are distances, not squared."""
    members = [[gap for gap, cluster in zip(gaps, own, strict=True) if cluster == c] for c in range(clusters)]
    phi = [sum(m) / (len(m) * math.log(len(m) + alpha)) if len(m) > 1 else 0.0 for m in members]
    phi = [max(phi) if len(m) <= 1 else value for m, value in zip(members, phi, strict=True)]
    low, high = percentile(phi, 0.1), percentile(phi, 0.9)
    phi = [min(max(value, low), high) for value in phi]
    return [temperature * value / (sum(phi) / len(phi)) for value in phi]


@pytest.mark.parametrize("smoothing", [1.0, 10.0])
def test_concentration_equals_a_literal_transcription_of_pcls_equation_12(smoothing: float):
    gaps = randn(40).abs() + 0.1
    own = torch.randint(0, 9, (40,), generator=torch.Generator().manual_seed(1))
    own[own == 4] = 3  # 4 is empty
    own[own == 5], own[0] = 6, 5  # 5 has one image
    found = concentration(gaps.square(), own, 9, 0.2, smoothing)
    theirs = transcribed_concentration(gaps.tolist(), own.tolist(), 9, 0.2, smoothing)
    torch.testing.assert_close(found, torch.tensor(theirs, dtype=torch.float64), atol=1e-7, rtol=0)


def test_concentrations_have_the_temperature_as_their_mean_and_loose_clusters_the_larger_ones():
    own = torch.arange(60) % 6
    gaps = (1 + own.double()) ** 2  # cluster c lies at distance 1 + c
    phi = concentration(gaps, own, 6, 0.2)
    assert phi.mean().item() == pytest.approx(0.2, abs=1e-9)
    assert (phi.diff() > 0).all()


@pytest.mark.parametrize("smoothing", [0.0, 10.0])
def test_concentrations_stay_positive_when_all_images_of_a_cluster_are_one(smoothing: float):
    own = torch.tensor([0, 0, 0, 1, 1, 2])
    for gaps in (torch.zeros(6), torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 4.0]), torch.full((6,), -1e-7)):
        phi = concentration(gaps, own, 4, 0.2, smoothing)
        assert phi.isfinite().all()
        assert (phi > 0).all()


# Gradients

LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "nt_xent": lambda z: nt_xent(z[:3], z[3:], 0.2),
    "info_nce": lambda z: info_nce(z, randn(6, 4, seed=1), unit(randn(9, 4, seed=2)), 0.2),
    "regression": lambda z: regression(z, randn(6, 4, seed=1)),
    "cross_entropy_of_codes": lambda z: cross_entropy_of_codes(randn(6, 4, seed=1).softmax(1), z, 0.1),
    "proto_nce": lambda z: proto_nce(z, *clustered()[1:]),
    "proto_nce with drawn negatives": lambda z: proto_nce(z, *clustered()[1:], torch.tensor([5, 0, 3])),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_right_by_finite_differences(name: str):
    assert torch.autograd.gradcheck(LOSSES[name], (randn(6, 4).requires_grad_(),))


def test_codes_carry_no_gradient():
    scores = randn(6, 4).requires_grad_()
    assert not sinkhorn(scores, 0.05, 3).requires_grad


# Inputs at the edge

EDGES: dict[str, Tensor] = {
    "identical": torch.ones(6, 4),
    "opposed": torch.tensor([1.0, -1.0]).repeat(3)[:, None] * torch.ones(6, 4),
    "huge": 1e15 * randn(6, 4, dtype=torch.float32),
    "tiny": 1e-10 * randn(6, 4, dtype=torch.float32),
}


def in_float32(z: Tensor) -> dict[str, Tensor]:
    _, centroids, phi, own = clustered()
    return {
        "nt_xent": nt_xent(z[:3], z[3:], 0.07),
        "info_nce": info_nce(z, z.flip(0), unit(z), 0.07),
        "regression": regression(z, z.flip(0)),
        "cross_entropy_of_codes": cross_entropy_of_codes(sinkhorn(unit(z), 0.01, 3), unit(z), 0.01),
        "proto_nce": proto_nce(z, centroids.float(), phi.float(), own),
    }


@pytest.mark.parametrize("edge", EDGES)
def test_losses_and_gradients_stay_finite_for_extreme_embeddings(edge: str):
    for name in in_float32(EDGES[edge]):
        z = EDGES[edge].clone().requires_grad_()
        loss = in_float32(z)[name]
        loss.backward()
        assert loss.isfinite(), name
        assert z.grad is not None
        assert z.grad.isfinite().all(), name


@pytest.mark.parametrize("epsilon", [0.05, 0.001])
def test_sinkhorn_stays_finite_when_one_score_is_huge_or_no_image_wants_a_prototype(epsilon: float):
    scores = torch.zeros(6, 4)
    scores[0, 0], scores[:, 3], scores[5] = 1000.0, -1000.0, -500.0
    codes = sinkhorn(scores, epsilon, 3)
    assert codes.isfinite().all()
    torch.testing.assert_close(codes.sum(1), torch.ones(6))


def test_sinkhorn_of_equal_scores_is_uniform():
    torch.testing.assert_close(sinkhorn(torch.full((6, 4), 7.0), 0.05, 3), torch.full((6, 4), 0.25))


@HALVES
def test_losses_are_float32_under_autocast_and_equal_those_in_full_precision(dtype: torch.dtype):
    half = randn(6, 4).to(dtype)
    expected = in_float32(half.float())
    with torch.autocast("cpu", dtype=dtype):
        found = in_float32(half)
    for name, loss in found.items():
        assert loss.dtype == torch.float32, name
        assert loss.item() == pytest.approx(expected[name].item(), rel=1e-5), name


@TEMPERATURES
def test_a_temperature_only_rescales_the_similarities(temperature: float):
    first, second = unit(randn(6, 4)), unit(randn(6, 4, seed=1))
    logits = torch.cat([first, second]) @ torch.cat([first, second]).T / temperature
    logits.fill_diagonal_(float("-inf"))
    expected = F.cross_entropy(logits, torch.arange(12).roll(6))
    assert nt_xent(first, second, temperature).item() == pytest.approx(expected.item(), abs=1e-9)
