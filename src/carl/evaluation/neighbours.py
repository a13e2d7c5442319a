"""Weighted nearest-neighbour classification of frozen features (Wu et al. 2018).

Our own, because scikit-learn's classifier runs on the CPU alone and takes one number of neighbours at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from carl.defaults import KNN_NEIGHBOURS, KNN_TEMPERATURE
from carl.evaluation.accuracy import Array
from carl.nearest import nearest

CHUNK = 1024  # test images at a time


def knn_scores(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    neighbours: Sequence[int],
    temperature: float,
    classes: int,
) -> dict[int, Tensor]:
    """Class scores (M, classes) for each k: the k nearest by cosine vote with weight exp(similarity / T)."""
    bank, queries = F.normalize(train_features, dim=1), F.normalize(test_features, dim=1)
    largest = min(max(neighbours), len(bank))
    scores: dict[int, list[Tensor]] = {k: [] for k in neighbours}
    for query in queries.split(CHUNK):
        similarity, found = nearest(query, bank, largest)
        weights = ((similarity - 1) / temperature).exp()  # a common factor, so that no weight overflows
        votes = train_labels[found]
        for k in neighbours:
            score = query.new_zeros(len(query), classes)
            scores[k].append(score.scatter_add_(1, votes[:, :k], weights[:, :k]))
    return {k: torch.cat(parts) for k, parts in scores.items()}


def neighbour_stability(first: Tensor, second: Tensor, images: Tensor, count: int = 5) -> float:
    """How many of the `count` nearest images two views of an image share, in percent: a measure that needs no labels.

    `first` and `second` are features (N, D) of one view of each image, `images` those of the whole images.
    """
    bank = F.normalize(images, dim=1)
    count = min(count, len(bank) - 1)
    own = torch.arange(len(bank), device=bank.device)[:, None]
    found = []
    for view in (first, second):
        _, place = nearest(F.normalize(view, dim=1), bank, count + 1)
        place = place.masked_fill(place == own, -1)  # an image is no neighbour of itself
        found.append(place.gather(1, (place < 0).int().sort(dim=1, stable=True).indices)[:, :count])
    shared = found[0][:, :, None] == found[1][:, None, :]  # (N, count, count)
    return 100 * shared.any(dim=2).float().mean().item()


def view_separation(first: Tensor, second: Tensor) -> float:
    """How much more alike two views of an image are than views of different images, in standard deviations of those.

    `first` and `second` (N, D) are features of one view of each image. Training on views raises it, also where that
    hurts: it compares encoders whose neighbours are stable, and nothing else.
    """
    cosines = F.normalize(first, dim=1) @ F.normalize(second, dim=1).T
    others = cosines[~torch.eye(len(cosines), dtype=torch.bool, device=cosines.device)]
    return float((cosines.diagonal().mean() - others.mean()) / others.std().clamp(min=1e-12))


def knn_accuracy(
    train_features: Array,
    train_labels: Array,
    test_features: Array,
    test_labels: Array,
    neighbours: Sequence[int] = (KNN_NEIGHBOURS,),
    temperature: float = KNN_TEMPERATURE,
) -> dict[int, float]:
    """Top-1 accuracy in percent for each number of neighbours; NumPy arrays or tensors."""
    right = knn_right(train_features, train_labels, test_features, test_labels, neighbours, temperature)
    return {k: 100 * found.float().mean().item() for k, found in right.items()}


def knn_right(
    train_features: Array,
    train_labels: Array,
    test_features: Array,
    test_labels: Array,
    neighbours: Sequence[int] = (KNN_NEIGHBOURS,),
    temperature: float = KNN_TEMPERATURE,
) -> dict[int, Tensor]:
    """Which test images the nearest training images name rightly, for each number of neighbours: (M,) each."""
    train_features, test_features = torch.as_tensor(train_features).float(), torch.as_tensor(test_features).float()
    train_labels, test_labels = torch.as_tensor(train_labels).long(), torch.as_tensor(test_labels).long()
    classes = int(torch.max(train_labels.max(), test_labels.max())) + 1
    scores = knn_scores(train_features, train_labels, test_features, neighbours, temperature, classes)
    return {k: s.argmax(1) == test_labels for k, s in scores.items()}
