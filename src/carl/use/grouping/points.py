"""Features as points that can be grouped: few numbers per image, read as a stream.

Unit-length features are centred and turned to the directions in which they vary most. Features after a ReLU all point
into one corner, and many of their directions are noise. N images, D features, d dimensions kept.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from carl.errors import UserError

DIMENSIONS = 128  # kept at most
WHITENING = 0.25  # 0 leaves the directions as they are, 1 gives all of them the same variance
IN_MEMORY = 2**27  # numbers: points beyond 512 MB are kept in a temporary file

Batches = Callable[[], Iterable[np.ndarray]]  # features (n, D) in parts of some thousand rows, from the beginning


class FeatureRows(Protocol):
    """Features of images that need not fit into memory, such as a file of embeddings."""

    def __len__(self) -> int: ...

    def batches(self) -> Iterator[np.ndarray]: ...


@dataclass(frozen=True, eq=False)
class Projection:
    """From features (n, D) to points (n, d) of unit length."""

    mean: Tensor  # (D,) of the unit-length features
    directions: Tensor  # (D, d), scaled by the whitening

    def __call__(self, features: np.ndarray) -> Tensor:
        return F.normalize((unit_length(features) - self.mean) @ self.directions, dim=1)


def unit_length(features: np.ndarray) -> Tensor:
    """Features (n, D) as a tensor whose rows have length 1."""
    return F.normalize(torch.from_numpy(np.require(features, np.float32, ["C", "W"])), dim=1)


def fit_projection(batches: Batches, dimensions: int = DIMENSIONS, whitening: float = WHITENING) -> Projection:
    """The main directions of the features, from their covariance, which is added up batch by batch."""
    count, total, products = 0, None, None
    for features in batches():
        unit = unit_length(features).double()
        sums = unit.sum(0), unit.T @ unit
        total, products = sums if total is None or products is None else (total + sums[0], products + sums[1])
        count += len(unit)
    assert total is not None
    assert products is not None
    mean = total / count
    variances, directions = torch.linalg.eigh(products / count - mean.outer(mean))
    variances, directions = variances.flip(0), directions.flip(1)
    kept = min(dimensions, count - 1, int((variances > 1e-9 * variances[0].clamp(min=1e-12)).sum()))
    if kept < 1:
        raise UserError(
            f"all {count} images have the same features, so there is nothing to group; give other images, "
            "or another encoder"
        )
    scales = variances[:kept] ** (-whitening / 2)
    return Projection(mean.float(), (directions[:, :kept] * scales).float())


def project(batches: Batches, projection: Projection, count: int, folder: Path | None = None) -> Tensor:
    """Points (N, d); where they are too many for memory, in a temporary file of `folder` that goes with the tensor."""
    size = projection.directions.shape[1]
    if count * size <= IN_MEMORY:
        points = torch.empty(count, size)
    else:
        with tempfile.TemporaryFile(dir=folder) as file:  # stays on the disk for as long as it is mapped
            _take_room(file, count * size * 4)
            points = torch.from_numpy(np.memmap(file, np.float32, "r+", shape=(count, size)))
    start = 0
    for features in batches():
        points[start : start + len(features)] = projection(features)
        start += len(features)
    return points


def _take_room(file: IO[bytes], size: int) -> None:
    """Make a file `size` bytes long, all of them on the disk.

    Only then is it safe to map: no one else can cut a file without a name, but a page for which a full disk has no room
    would kill the process that writes to it.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
        return
    zeros = bytes(min(size, 2**20))
    for start in range(0, size, len(zeros)):
        file.write(zeros[: size - start])
    file.flush()
