"""How many groups there are, as far as the data say: a ladder of numbers, judged by how well neighbours agree.

For each number of groups, heads are trained on a sample, and two figures are measured that need no labels:

- the modularity of the groups (Newman 2006): by how much pairs of neighbours share a group more often than by chance.
  It is low for two groups, where chance is high;
- the mutual information of an image's group and its neighbour's, adjusted for chance (Vinh et al. 2010). It falls when
  groups are cut through, because neighbours are then torn apart.

Their mean has a flat top on real data, so the answer is a range. Within it the proposal leans to more groups, since
merging two is easier for people than taking one apart. N points, K groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from carl.nearest import nearest_neighbours, neighbour_count
from carl.terminal import Progress, silent
from carl.use.grouping.group_heads import HeadOptions, train_heads

SAMPLE = 4_000  # points that the ladder is climbed on
STEP = math.sqrt(2)  # from one rung to the next
MOST = 256  # groups on the ladder
LEAST_IMAGES = 6  # per group on the ladder: with fewer no one could tell
LIKE_THE_BEST, NEAR_THE_BEST = 0.97, 0.95  # parts of the best score: for the proposal, and for the range
HARDLY = 0.3  # best score below which there are hardly any groups; 0.6 to 0.7 for CIFAR-10 and flowers
OPTIONS = HeadOptions(heads=3, steps=60, rate=0.02)  # shorter than for the answer itself
COMPARED = 3  # neighbours of each point that must agree


@dataclass(frozen=True)
class Proposal:
    """A number of groups, the range that fits the data about as well, and the score of every number tried."""

    groups: int
    low: int
    high: int
    scores: dict[int, float]

    @property
    def best_score(self) -> float:
        return max(self.scores.values())

    def lines(self) -> Iterator[str]:
        """The proposal in words."""
        if self.best_score < HARDLY:
            sure = "the images hardly fall into groups, so any number is arbitrary"
        elif self.low == self.high:
            sure = "fairly sure: no other number that was tried fits as well"
        elif self.high <= 2 * self.low:
            sure = f"fairly sure: from {self.low} to {self.high} fit about as well"
        else:
            sure = f"not sure: anything from {self.low} to {self.high} fits about as well"
        yield f"{self.groups} groups proposed ({sure}); choose another number with --groups"


def propose(points: Tensor, neighbours: Tensor, seed: int = 0, progress: Progress = silent) -> Proposal:
    """A number of groups for `points` (N, d), whose `neighbours` are (N, k)."""
    if len(points) > SAMPLE:
        rows = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:SAMPLE]
        points = points[rows]
        neighbours = nearest_neighbours(points, min(neighbours.shape[1], len(points) - 1), seed)
    rungs = ladder(len(points))
    scores = {}
    for place, groups in enumerate(rungs):
        progress("trying numbers of groups", place, len(rungs))
        scores[groups] = score(points, neighbours, groups, seed)
    progress("trying numbers of groups", len(rungs), len(rungs))
    return chosen(scores)


def ladder(images: int) -> list[int]:
    """Numbers of groups to try, growing by a constant factor."""
    most = max(2, min(MOST, images // LEAST_IMAGES))
    steps = int(math.log(most / 2, STEP) + 1e-9)
    return sorted({*(round(2 * STEP**step) for step in range(steps + 1)), most})


def chosen(scores: dict[int, float]) -> Proposal:
    """The largest number that is like the best, and the range of those near the best around it."""
    best = max(scores.values())
    groups = max(number for number, value in scores.items() if value >= LIKE_THE_BEST * best)
    near = [number for number, value in scores.items() if value >= NEAR_THE_BEST * best]
    return Proposal(groups, min(near), max(near), scores)


def score(points: Tensor, neighbours: Tensor, groups: int, seed: int) -> float:
    """Modularity and adjusted mutual information of neighbours' groups, averaged over the heads."""
    near = neighbours[:, : neighbour_count(len(points), groups)]
    heads = train_heads(points, near, groups, OPTIONS, seed)
    compared = neighbours[:, :COMPARED].numpy()
    found = [
        neighbour_agreement(heads.log_assignments(points, head).argmax(1).numpy(), compared)
        for head in range(len(heads.scores))
    ]
    return float(np.mean(found))


def neighbour_agreement(groups: np.ndarray, neighbours: np.ndarray) -> float:
    """Mean of modularity and adjusted mutual information, for groups (N,) and neighbours (N, k)."""
    from sklearn.metrics import adjusted_mutual_info_score

    others = groups[neighbours]
    shares = np.bincount(groups) / len(groups)
    modularity = (others == groups[:, None]).mean() - (shares**2).sum()
    information = np.mean([adjusted_mutual_info_score(groups, other) for other in others.T])
    return float(modularity + information) / 2
