"""Groups beside the labels that images have, beside k-means on the same features, and beside chance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from carl.clustering import kmeans
from carl.data.dataset import UNLABELLED
from carl.evaluation.clusters import Agreement, compare_clusters
from carl.use.embedding_files import EmbeddingFile
from carl.use.grouping.points import FeatureRows, unit_length
from carl.use.image_labels import ImageLabels

RESTARTS = 20  # of k-means; the best by its own criterion counts
ITERATIONS = 100  # at most
FITTED = 20_000  # images that the centres of k-means are found from
SHUFFLES = 5  # whose mean is chance


@dataclass(frozen=True)
class Judged:
    """How well groups match labels, in percent (the adjusted Rand index is near 0 for chance)."""

    groups: Agreement
    kmeans: Agreement
    chance: Agreement
    truth: str  # what the groups are compared with

    def lines(self) -> Iterator[str]:
        """A small table for a terminal."""
        yield f"{self.truth:24}{'matched':>9}{'NMI':>8}{'ARI':>8}"
        rows = {"these groups": self.groups, f"k-means, {RESTARTS} restarts": self.kmeans, "chance": self.chance}
        for name, one in rows.items():
            yield f"  {name:22}{one.matched:8.1f}%{one.nmi:8.1f}{one.ari:8.1f}"


def judge(index: EmbeddingFile, groups: np.ndarray, count: int, labels: ImageLabels, seed: int = 0) -> Judged:
    """Compare `groups` (N,) with the labels; k-means of the unit-length features gets the same number of groups."""
    known = labels.values != UNLABELLED
    _, truth = np.unique(labels.values[known], return_inverse=True)
    generator = np.random.default_rng(seed)
    shuffled = [agreement(generator.permutation(groups[known]), truth, count) for _ in range(SHUFFLES)]
    clusters = kmeans_groups(index, count, seed)
    return Judged(
        agreement(groups[known], truth, count),
        agreement(clusters[known], truth, count),
        Agreement(*(float(np.mean(values)) for values in zip(*map(_values, shuffled), strict=True))),  # type: ignore[arg-type]
        "with the sub-folders" if labels.of_folders else "with the labels",
    )


def agreement(groups: np.ndarray, truth: np.ndarray, count: int) -> Agreement:
    return compare_clusters(
        groups, truth, clusters=count, train_found=groups, train_truth=truth, classes=int(truth.max()) + 1
    )


def _values(one: Agreement) -> tuple[float, ...]:
    return one.clusters, one.used, one.nmi, one.ari, one.matched, one.majority


def kmeans_groups(index: FeatureRows, count: int, seed: int) -> np.ndarray:
    """The best of RESTARTS runs of k-means on unit-length features; of very many images on a sample of them."""
    total = len(index)
    chosen = np.zeros(total, bool)
    chosen[np.random.default_rng(seed).permutation(total)[:FITTED]] = True
    sample, start = [], 0
    for batch in index.batches():
        sample.append(unit_length(batch)[torch.from_numpy(chosen[start : start + len(batch)])])
        start += len(batch)
    fit = kmeans(torch.cat(sample), count, seed, ITERATIONS, RESTARTS)
    if total <= FITTED:
        return fit.assignments.numpy()
    found = [torch.cdist(unit_length(batch), fit.centroids).argmin(1) for batch in index.batches()]
    return torch.cat(found).numpy()
