"""DeepCluster v2: its loss, its memory, and clusters that cost no forward pass after the first epoch."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from carl.errors import UserError
from carl.methods.deepcluster import DeepCluster, MemoryClusters, cluster_prediction
from tests.methods.examples import FACTS, IMAGES, PROGRESS, embedder, make, make_batch, settings


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def deepcluster() -> DeepCluster:
    method = make("deepcluster")
    assert isinstance(method, DeepCluster)
    return method


def test_the_loss_is_the_formula_written_out():
    views, centroids, own = randn(3, 4, 5), F.normalize(randn(6, 5, seed=1), dim=1), torch.tensor([0, 3, 3, 5])
    terms = []
    for view in views:
        for image, cluster in zip(view, own.tolist(), strict=True):
            scores = [float(image @ centroid) / float(image.norm()) / 0.1 for centroid in centroids]
            terms.append(math.log(sum(map(math.exp, scores))) - scores[cluster])
    assert cluster_prediction(views, centroids, own, 0.1).item() == pytest.approx(sum(terms) / len(terms), rel=1e-9)


def test_gradients_are_those_of_finite_differences():
    centroids, own = F.normalize(randn(4, 3, seed=1), dim=1), torch.tensor([0, 1, 3])
    views = randn(2, 3, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: cluster_prediction(v, centroids, own, 0.5), views)


def test_embeddings_at_their_own_centroid_cost_almost_nothing_and_at_another_the_most():
    centroids = torch.eye(3, dtype=torch.float64)
    right = cluster_prediction(centroids[None], centroids, torch.arange(3), 0.05).item()
    wrong = cluster_prediction(centroids[None], centroids, torch.tensor([1, 2, 0]), 0.05).item()
    assert right < 1e-7
    assert wrong == pytest.approx(20.0, abs=1e-6)


def test_clusters_are_those_of_the_memory_and_the_banks_take_turns():
    clusterings = MemoryClusters([2, 2], 8, 3)
    axes, noise = torch.eye(3), 0.05 * randn(2, 8, 3).float()
    clusterings.remember(torch.arange(8), torch.stack([axes[[0, 1] * 4], axes[[0, 0, 0, 0, 2, 2, 2, 2]]]) + noise)
    assert not clusterings.fitted
    clusterings.fit(seed=0, iterations=5)
    first, second = clusterings.assignments.tolist()
    assert first in ([0, 1] * 4, [1, 0] * 4)
    assert second in ([0] * 4 + [1] * 4, [1] * 4 + [0] * 4)
    assert clusterings.centroids(0).norm(dim=1).tolist() == pytest.approx([1.0, 1.0])


def test_only_the_first_epoch_sends_all_images_through_the_encoder():
    torch.manual_seed(0)
    method = DeepCluster(settings("deepcluster"), FACTS)

    def refuse(function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        raise AssertionError("all images go through the encoder again")

    method.before_epoch(0, embedder(method))
    before = method.clusterings.assignments.clone()
    batch = make_batch("deepcluster", IMAGES)
    method(batch, PROGRESS)
    method.after_step(PROGRESS)
    method.before_epoch(1, refuse)
    assert not torch.equal(method.clusterings.assignments, before)  # of the views that the step saw


def test_the_memory_holds_the_embeddings_of_both_views_at_the_images_places():
    method, batch = deepcluster(), make_batch("deepcluster", 8, first=16)
    before = method.clusterings.memory.clone()
    represented = method.represent(batch).detach()
    method.objective(represented, batch, PROGRESS)
    method.after_step(PROGRESS)
    torch.testing.assert_close(method.clusterings.memory[:, 16:24], represented[:2])
    assert torch.equal(method.clusterings.memory[:, :16], before[:, :16])


def test_more_clusters_than_images_are_refused():
    with pytest.raises(UserError, match=r"method.clusters=.* is over the 64 images; ask for fewer"):
        make("deepcluster", clusters=[65])
