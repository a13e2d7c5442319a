"""Several clusterings of the whole training set, each with its concentrations: the E-step of PCL (Li et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from carl import distributed
from carl.clustering import kmeans
from carl.methods.losses import concentration, log_assignments, proto_nce, unit


class Clusterings(nn.Module):
    """Centroids, concentrations and the cluster of every image, in buffers: a checkpoint holds them.

    They are zero until the first `fit`, so that a checkpoint's keys and shapes do not depend on how far a run has come.
    """

    assignments: Tensor  # (M, images): the cluster of each image in each clustering

    def __init__(self, counts: Sequence[int], images: int, dim: int) -> None:
        super().__init__()
        self.counts = tuple(counts)
        for number, count in enumerate(self.counts):
            self.register_buffer(f"centroids_{number}", torch.zeros(count, dim))
            self.register_buffer(f"concentrations_{number}", torch.zeros(count))
        self.register_buffer("assignments", torch.zeros(len(self.counts), images, dtype=torch.int64))

    def centroids(self, number: int) -> Tensor:
        return self.get_buffer(f"centroids_{number}")

    def concentrations(self, number: int) -> Tensor:
        return self.get_buffer(f"concentrations_{number}")

    @property
    def fitted(self) -> bool:
        return bool(self.concentrations(0).any())

    @torch.no_grad()
    def fit(
        self,
        rows: Tensor,
        embeddings: Tensor,
        seed: int,
        iterations: int,
        restarts: int,
        temperature: float,
        smoothing: float,
    ) -> None:
        """Cluster unit embeddings (n, D) of the images at `rows`: this process's share of all images."""
        images = self.assignments.shape[1]
        for number, count in enumerate(self.counts):
            found = kmeans(embeddings, count, len(self.counts) * seed + number, iterations, restarts)
            own = distributed.laid_out(found.assignments, rows, images)
            gaps = distributed.laid_out(found.distances, rows, images)
            self.assignments[number].copy_(own)
            self.centroids(number).copy_(unit(found.centroids))
            self.concentrations(number).copy_(concentration(gaps, own, count, temperature, smoothing))

    def proto_nce(self, embeddings: Tensor, indices: Tensor, negatives: int) -> Tensor:
        """Mean over the clusterings of Eq. 11's inner term, for the images at `indices`: (B, D), (B,) -> ().

        Where a clustering has more than `negatives` other clusters, so many are drawn.
        """
        terms = []
        for number, count in enumerate(self.counts):
            drawn = None
            if count > negatives + 1:
                drawn = distributed.from_main(torch.randperm(count, device=embeddings.device)[:negatives])
            own = self.assignments[number].index_select(0, indices)
            terms.append(proto_nce(embeddings, self.centroids(number), self.concentrations(number), own, drawn))
        return torch.stack(terms).mean()

    def log_assignments(self, embeddings: Tensor) -> Tensor:
        """Log-probabilities of the clusters of the first clustering: (B, D) -> (B, K)."""
        return log_assignments(unit(embeddings) @ self.centroids(0).T / self.concentrations(0))

    def largest(self) -> float:
        """Share of the images in the fullest cluster of the first clustering."""
        sizes = self.assignments[0].bincount(minlength=self.counts[0])
        return float(sizes.max() / sizes.sum())
