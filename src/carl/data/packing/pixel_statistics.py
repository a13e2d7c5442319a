"""Mean, standard deviation and checksum of arrays that may be larger than memory."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from carl.data.dataset import Statistics
from carl.data.decoding.file_arrays import FileArray
from carl.terminal import Progress, silent

Result = TypeVar("Result")

CHUNK_BYTES = 4 * 2**20  # of uint8; a thread needs five times as much for a while
_EXACT_ROWS = 256  # 256 * 255**2 < 2**24: the sum of this many squares is exact in float32


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def statistics_and_digest(pixels: np.ndarray | FileArray, progress: Progress = silent) -> tuple[Statistics, int]:
    """Mean and population standard deviation per channel of (N, H, W, C) uint8, scaled to [0, 1], and a checksum.

    A channel that never varies gets the standard deviation of one grey level, so that dividing by it is safe.
    """
    channels, digest = pixels.shape[3], 0
    sums, squares = np.zeros(channels), np.zeros(channels)
    for (chunk_sums, chunk_squares), checksum in _map_chunks(_sums_and_checksum, pixels, progress, "statistics"):
        sums += chunk_sums
        squares += chunk_squares
        digest = _join(digest, checksum)
    count = pixels.size // channels
    mean = sums / count
    deviation = np.sqrt(np.maximum(squares / count - mean**2, 0))
    deviation[deviation == 0] = 1
    return Statistics(tuple((mean / 255).tolist()), tuple((deviation / 255).tolist())), digest


def pixels_digest(pixels: np.ndarray | FileArray, progress: Progress = silent) -> int:
    """A checksum that changes with any pixel and with their order, and costs hardly more than reading them."""
    digest = 0
    for checksum in _map_chunks(_checksum, pixels, progress, "checksum"):
        digest = _join(digest, checksum)
    return digest


def _join(digest: int, checksum: int) -> int:
    return zlib.crc32(checksum.to_bytes(4, "little"), digest)


def _sums_and_checksum(chunk: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], int]:
    return _chunk_sums(chunk), _checksum(chunk)


def _checksum(chunk: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(chunk).data)


def _chunk_sums(chunk: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    channels = chunk.shape[-1]
    sums, squares = np.zeros(channels), np.zeros(channels)
    rows = chunk.reshape(len(chunk) * chunk.shape[1], -1)  # (rows, W * C), one for each row of an image
    for start in range(0, len(rows), _EXACT_ROWS):
        values = rows[start : start + _EXACT_ROWS].astype(np.float32)
        sums += values.sum(axis=0).reshape(-1, channels).sum(axis=0, dtype=np.float64)
        np.square(values, out=values)
        squares += values.sum(axis=0).reshape(-1, channels).sum(axis=0, dtype=np.float64)
    return sums, squares


def _map_chunks(
    function: Callable[[np.ndarray], Result], pixels: np.ndarray | FileArray, progress: Progress, what: str
) -> Iterator[Result]:
    """The `function` of every chunk, in order, computed by one thread per core."""
    step = max(1, CHUNK_BYTES // max(1, math.prod(pixels.shape[1:])))
    starts = range(0, len(pixels), step)

    def of_chunk(start: int) -> Result:
        return function(pixels[start : start + step])

    with ThreadPoolExecutor(available_cores()) as pool:
        for start, result in zip(starts, pool.map(of_chunk, starts), strict=True):
            progress(what, min(start + step, len(pixels)), len(pixels))
            yield result
