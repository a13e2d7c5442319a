"""k-means by Lloyd's iterations, on any device and over any number of processes.

Our own, because scikit-learn's k-means runs on the CPU of one process, and PCL clusters all training images every
epoch.

Shapes: N points of this process, K clusters, D dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappush, heapreplace

import torch
from torch import Tensor

from carl.distributed import rank, sum_over_processes, world_size
from carl.errors import UserError

# Distances that exist at once: on a CPU 1 MiB, which stays in its cache (2^17 to 2^20 measured), elsewhere 256 MiB.
CHUNK_VALUES = {"cpu": 2**18, "elsewhere": 2**26}
LEAST_ROWS = 256  # of a chunk: with fewer, a product of matrices is no faster than its vectors one by one
SPLIT = 1 / 1024  # relative shift of the halves of a split cluster (faiss, Clustering.cpp)


@dataclass(frozen=True)
class KMeans:
    """Clusters of points; with many processes, assignments and distances are those of this process's points."""

    centroids: Tensor  # (K, D) float32, the same in every process
    assignments: Tensor  # (N,) int64, the nearest centroid
    distances: Tensor  # (N,) squared, to the own centroid
    inertia: float  # sum of the distances, over all processes


def kmeans(points: Tensor, clusters: int, seed: int, iterations: int = 20, restarts: int = 1) -> KMeans:
    """The best of `restarts` runs of Lloyd's algorithm from random points, as faiss and PCL begin (Li et al. 2021).

    `points` (N, D) is this process's share; every process must call this, with the same arguments otherwise, and
    all end with the same centroids. 20 iterations are PCL's choice; it ends earlier when no point changes cluster.
    """
    points = points.detach().float()
    shares = _shares(points)
    _check(points, clusters, sum(shares))
    generator = torch.Generator().manual_seed(seed)
    best: KMeans | None = None
    for _ in range(restarts):
        places = torch.randperm(sum(shares), generator=generator)[:clusters]
        found = lloyd(points, _points_at(points, places, shares), iterations)
        if best is None or found.inertia < best.inertia:
            best = found
    assert best is not None
    return best


def lloyd(points: Tensor, centroids: Tensor, iterations: int) -> KMeans:
    """Lloyd's algorithm from given centroids: assign each point to the nearest, move each to the mean of its points."""
    count = sum_over_processes(points.new_tensor([float(len(points))]))
    # Places are counted from the mean of all points: x.x - 2 x.c + c.c loses digits far from the origin.
    origin = sum_over_processes(points.sum(0)) / count
    centroids = centroids - origin
    before = torch.full((len(points),), -1, device=points.device)
    for _ in range(iterations):
        assignments, sums, sizes = _assign(points, centroids, origin)
        if not sum_over_processes((assignments != before).sum().view(1)).item():
            break
        before = assignments
        centroids = moved_centroids(centroids, sum_over_processes(sums), sum_over_processes(sizes))
    assignments, _, _ = _assign(points, centroids, origin)
    centroids = centroids + origin
    rows = rows_per_chunk(centroids)
    pairs = zip(points.split(rows), assignments.split(rows), strict=True)
    distances = torch.cat([(part - centroids[own]).square().sum(1) for part, own in pairs])
    return KMeans(centroids, assignments, distances, sum_over_processes(distances.sum().view(1)).item())


def _assign(points: Tensor, centroids: Tensor, origin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Nearest centroid of each point, and per centroid the sum (K, D) and number (K,) of its points."""
    half_norms = -0.5 * centroids.square().sum(1)
    sums, nearest = torch.zeros_like(centroids), []
    for part in points.split(rows_per_chunk(centroids)):
        part = part - origin
        own = torch.addmm(half_norms, part, centroids.T).argmax(1)  # x.c - c.c / 2 is largest where |x - c| is least
        nearest.append(own)
        # Elsewhere index_add_ adds in varying order, and the same seed would give other bits: CUDA's index_put_ sorts.
        if part.device.type == "cpu":
            sums.index_add_(0, own, part)
        elif part.device.type == "cuda":
            sums.index_put_((own,), part, accumulate=True)
        else:
            sums += part.new_zeros(len(part), len(centroids)).scatter_(1, own[:, None], 1.0).T @ part
    assignments = torch.cat(nearest)
    return assignments, sums, assignments.bincount(minlength=len(centroids)).to(sums.dtype)


def moved_centroids(centroids: Tensor, sums: Tensor, sizes: Tensor) -> Tensor:
    """Means of the clusters; an empty one takes half of the largest, where faiss takes half of one drawn by size."""
    means = torch.where(sizes[:, None] > 0, sums / sizes.clamp(min=1)[:, None], centroids)
    by_size = [(-size, place) for place, size in enumerate(sizes.tolist())]
    empties = [place for size, place in by_size if size == 0]
    heapify(by_size)
    shift = torch.full_like(means[0], SPLIT)
    shift[1::2] = -SPLIT
    for empty in empties:
        size, largest = by_size[0]
        means[empty] = means[largest] * (1 + shift)
        means[largest] = means[largest] * (1 - shift)
        heapreplace(by_size, (size / 2, largest))
        heappush(by_size, (size / 2, empty))  # its entry of size 0 stays, at the end of the heap
    return means


def rows_per_chunk(centroids: Tensor) -> int:
    values = CHUNK_VALUES["cpu" if centroids.device.type == "cpu" else "elsewhere"]
    return max(LEAST_ROWS, values // len(centroids))


def _shares(points: Tensor) -> list[int]:
    """Number of points of each process."""
    counts = torch.zeros(world_size(), dtype=torch.int64, device=points.device)
    counts[rank()] = len(points)
    return [int(count) for count in sum_over_processes(counts)]


def _points_at(points: Tensor, places: Tensor, shares: list[int]) -> Tensor:
    """The points at `places` of all shares laid end to end, in every process."""
    here = places - sum(shares[: rank()])
    mine = ((here >= 0) & (here < len(points))).nonzero()[:, 0]
    found = points.new_zeros(len(places), points.shape[1])
    found[mine.to(points.device)] = points[here[mine].to(points.device)]
    return sum_over_processes(found)


def _check(points: Tensor, clusters: int, total: int) -> None:
    if not 1 <= clusters <= total:
        raise UserError(f"clusters={clusters} of {total} points: there must be 1 to {total}; ask for another number")
    if sum_over_processes((~torch.isfinite(points)).sum().view(1)).item():  # all processes must see it, or some wait
        raise UserError("the points to cluster hold values that are not finite; look at the encoder that made them")
