"""Clusters against classes: the method's prototypes, and k-means of the features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional as F

from carl import distributed
from carl.clustering import kmeans
from carl.evaluation.accuracy import Array
from carl.evaluation.evaluation_data import EvaluationData
from carl.evaluation.features import frozen
from carl.methods import Method


@dataclass(frozen=True)
class Agreement:
    """How clusters of the test images agree with their classes; percentages, chance is near 0 for `ari`."""

    clusters: int
    used: int  # clusters with at least one test image
    nmi: float  # normalised mutual information, arithmetic mean of the entropies
    ari: float  # adjusted Rand index
    matched: float  # accuracy of the best match in which each class has at most one cluster (Hungarian)
    majority: float  # accuracy when each cluster has the class most frequent in it on the *training* images

    def figures(self) -> dict[str, float]:
        """The figures, by the names that tables show."""
        return {"matched": self.matched, "majority": self.majority, "NMI": self.nmi, "ARI": self.ari}


def compare_clusters(
    found: Array, truth: Array, *, clusters: int, train_found: Array, train_truth: Array, classes: int
) -> Agreement:
    """Agreement of test images' clusters (M,) with their classes, and of the training images' for the majority."""
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    found, truth, train_found, train_truth = (np.asarray(a) for a in (found, truth, train_found, train_truth))
    table = _table(found, truth, clusters, classes)
    majority = _table(train_found, train_truth, clusters, classes).argmax(1)
    return Agreement(
        clusters=clusters,
        used=len(np.unique(found)),
        nmi=100 * float(normalized_mutual_info_score(truth, found)),
        ari=100 * float(adjusted_rand_score(truth, found)),
        matched=100 * most_matched(table) / len(truth),
        majority=100 * float((majority[found] == truth).mean()),
    )


def most_matched(table: np.ndarray) -> int:
    """The largest sum of entries of a table of counts, no two in the same row or column."""
    rows, columns = linear_sum_assignment(table, maximize=True)
    return int(table[rows, columns].sum())


def _table(found: np.ndarray, truth: np.ndarray, clusters: int, classes: int) -> np.ndarray:
    """How many images of each class are in each cluster: (clusters, classes)."""
    return np.bincount(found * classes + truth, minlength=clusters * classes).reshape(clusters, classes)


def cluster_features(
    encoder: nn.Module, data: EvaluationData, clusters: Sequence[int], iterations: int, restarts: int, seed: int
) -> list[Agreement]:
    """k-means of the training images' unit features, with each number of clusters; the test images are judged."""
    train = F.normalize(data.cached_features(encoder, data.train), dim=1).to(data.device)
    test = F.normalize(data.cached_features(encoder, data.test), dim=1).to(data.device)
    results = []
    for count in clusters:
        centroids, found = kmeans_together(train, min(count, len(train)), iterations, restarts, seed)
        nearest = torch.cat([torch.cdist(part, centroids).argmin(1) for part in test.split(4096)]).cpu()
        results.append(
            compare_clusters(
                nearest,
                data.test_labels,
                clusters=len(centroids),
                train_found=found.cpu(),
                train_truth=data.train_labels,
                classes=data.classes,
            )
        )
    return results


def kmeans_together(points: Tensor, clusters: int, iterations: int, restarts: int, seed: int) -> tuple[Tensor, Tensor]:
    """Centroids and the cluster of every point, which all processes have; each of them works on its share."""
    with distributed.computing_together():
        places = torch.arange(len(points), device=points.device)
        mine = places.tensor_split(distributed.world_size())[distributed.rank()]
        fit = kmeans(points[mine], clusters, seed, iterations, restarts)
        return fit.centroids, distributed.laid_out(fit.assignments, mine, len(points))


def cluster_prototypes(method: Method, data: EvaluationData) -> Agreement | None:
    """The prototype that each whole image chooses; None for methods without prototypes."""
    vectors = method.prototype_vectors()
    if vectors is None:
        return None

    def choose(images: Tensor) -> Tensor:
        log_p = method.log_assignments(images)
        assert log_p is not None
        return log_p.argmax(1)

    with frozen(method):
        train, test = (data.mapped(choose, split).long() for split in (data.train, data.test))
    count = max(len(vectors), int(train.max()) + 1, int(test.max()) + 1)
    return compare_clusters(
        test,
        data.test_labels,
        clusters=count,
        train_found=train,
        train_truth=data.train_labels,
        classes=data.classes,
    )
