"""Which points are nearest to each: exactly for tens of thousands of points, within nearby cells for more.

N points of unit length, d dimensions, k neighbours. Our own, because scikit-learn's search holds everything in memory
and an index library would be one more dependency for 60 lines.
"""

from __future__ import annotations

import torch
from torch import Tensor

from carl.clustering import lloyd
from carl.terminal import Progress

EXACT = 60_000  # points: half a minute for all pairs on two cores; beyond it the time would grow with the square
QUERIES = 1024  # points at a time
CELL_POINTS = 500  # per cell, on average
PROBED = 8  # cells that are searched for a point: of its true 20 neighbours 19 are found (tests/use/test_grouping.py)
SAMPLE = 40  # points per cell that its centre is found from
BANK = 65_536  # points that queries are compared with at a time: a chunk of similarities takes 256 MB


def nearest(query: Tensor, bank: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most similar of the bank, the bank read in chunks so that a million features fit."""
    best, place = query.new_zeros(len(query), 0), torch.zeros(len(query), 0, dtype=torch.long, device=query.device)
    for start in range(0, len(bank), BANK):
        similarity = query @ bank[start : start + BANK].T
        top, at = similarity.topk(min(k, similarity.shape[1]), dim=1)
        best, place = torch.cat([best, top], 1), torch.cat([place, at + start], 1)
        best, order = best.topk(min(k, best.shape[1]), dim=1)
        place = place.gather(1, order)
    return best, place


def neighbour_count(images: int, groups: int, most: int = 20) -> int:
    """Neighbours that are probably of the same group: half of an average group, 2 to `most`."""
    return min(images - 1, max(2, min(most, images // (2 * groups))))


def nearest_neighbours(points: Tensor, count: int, seed: int = 0, progress: Progress | None = None) -> Tensor:
    """Rows of the `count` points most similar to each point, itself left out: (N, d) -> (N, count) int64."""
    if len(points) > EXACT:
        return _within_cells(points, count, seed, progress)
    parts = []
    for start in range(0, len(points), QUERIES):
        query = points[start : start + QUERIES]
        rows = torch.arange(start, start + len(query), device=points.device)
        parts.append(_without(rows, nearest(query, points, count + 1)[1]))
        if progress is not None:
            progress("comparing", start + len(query), len(points))
    return torch.cat(parts)


def _without(rows: Tensor, found: Tensor) -> Tensor:
    """`found` (n, k + 1) without each row's own number; among equal points that may be missing, and the last goes."""
    is_other = found != rows[:, None]
    is_other[is_other.all(dim=1), -1] = False
    return found[is_other].view(len(rows), -1)


def _within_cells(points: Tensor, count: int, seed: int, progress: Progress | None) -> Tensor:
    """The same, looked for in the cells nearest to a point's own: the points are cut into cells by k-means."""
    generator = torch.Generator().manual_seed(seed)
    cells = max(PROBED, len(points) // CELL_POINTS)
    sample = points[torch.randperm(len(points), generator=generator)[: SAMPLE * cells]]
    centres = lloyd(sample, sample[:cells].clone(), 10).centroids
    own = torch.cat([_nearest_centre(part, centres) for part in points.split(8192)])
    order = own.argsort(stable=True)
    members = order.split(own.bincount(minlength=cells).tolist())
    found = torch.empty(len(points), count, dtype=torch.int64, device=points.device)
    done = 0
    for cell, rows in enumerate(members):
        if not len(rows):
            continue
        by_distance = (centres - centres[cell]).square().sum(1).argsort()
        probed = PROBED
        while sum(len(members[near]) for near in by_distance[:probed]) <= count:  # tiny cells: look further
            probed += PROBED
        others = torch.cat([members[near] for near in by_distance[:probed]])
        for part in rows.split(QUERIES):
            places = nearest(points[part], points[others], count + 1)[1]
            found[part] = _without(part, others[places])
        done += len(rows)
        if progress is not None:
            progress("comparing", done, len(points))
    return found


def _nearest_centre(points: Tensor, centres: Tensor) -> Tensor:
    return torch.addmm(-0.5 * centres.square().sum(1), points, centres.T).argmax(1)
