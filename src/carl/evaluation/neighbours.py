"""Weighted nearest-neighbour classification of frozen features (Wu et al. 2018).

Our own, because scikit-learn's classifier runs on the CPU alone and takes one number of neighbours at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
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
        for k in neighbours:
            scores[k].append(_votes(similarity[:, :k], train_labels[found[:, :k]], temperature, classes))
    return {k: torch.cat(parts) for k, parts in scores.items()}


def _votes(similarity: Tensor, labels: Tensor, temperature: float, classes: int) -> Tensor:
    """Class scores (M, classes) from the similarities and the labels of each image's neighbours, (M, k) both."""
    weights = ((similarity - 1) / temperature).exp()  # a common factor, so that no weight overflows
    return similarity.new_zeros(len(similarity), classes).scatter_add_(1, labels, weights)


def knn_right_among(
    features: Tensor, labels: Tensor, neighbours: int = KNN_NEIGHBOURS, temperature: float = KNN_TEMPERATURE
) -> Tensor:
    """Which labelled images the nearest others name rightly: (N,). No image has a say about itself."""
    bank, labels = F.normalize(features, dim=1), labels.long()
    count, right = min(neighbours, len(bank) - 1), []
    for start in range(0, len(bank), CHUNK):
        query = bank[start : start + CHUNK]
        own = torch.arange(start, start + len(query), device=bank.device)[:, None]
        similarity, found = nearest(query, bank, count + 1)
        # An image that is not among the neighbours of itself, because others are equal to it, loses the last of them.
        similarity, order = similarity.masked_fill(found == own, -math.inf).sort(dim=1, descending=True, stable=True)
        voters = labels[found.gather(1, order)[:, :count]]
        scores = _votes(similarity[:, :count], voters, temperature, int(labels.max()) + 1)
        right.append(scores.argmax(1) == labels[start : start + CHUNK])
    return torch.cat(right)


def neighbour_stability(first: Tensor, second: Tensor, images: Tensor, count: int = 5) -> float:
    """How many of the `count` nearest images two views of an image share, in percent: a measure that needs no labels.

    `first` and `second` are features (N, D) of one view of each image, `images` those of the whole images.
    """
    return float(per_image_stability(shared_neighbours(first, second, images, count).numpy(force=True), count).mean())


def per_image_stability(shared: np.ndarray, count: int = 5) -> np.ndarray:
    """Of `shared_neighbours`, the part of its nearest images that the two views of each image share, in percent."""
    return 100 * shared / min(count, len(shared) - 1)


def shared_neighbours(first: Tensor, second: Tensor, images: Tensor, count: int = 5) -> Tensor:
    """How many of its `count` nearest images the two views of each image share: (N,) whole numbers."""
    bank = F.normalize(images, dim=1)
    count = min(count, len(bank) - 1)
    own = torch.arange(len(bank), device=bank.device)[:, None]
    found = []
    for view in (first, second):
        _, place = nearest(F.normalize(view, dim=1), bank, count + 1)
        place = place.masked_fill(place == own, -1)  # an image is no neighbour of itself
        found.append(place.gather(1, (place < 0).int().sort(dim=1, stable=True).indices)[:, :count])
    shared = found[0][:, :, None] == found[1][:, None, :]  # (N, count, count)
    return shared.any(dim=2).sum(dim=1)


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
