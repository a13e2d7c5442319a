"""Which group each image is in, how sure that is, and which group comes second."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from carl.records.given_names import fingerprint
from carl.use.grouping.group_heads import Heads


@dataclass(frozen=True, eq=False)
class Assignment:
    """Groups of N images, numbered from the largest on."""

    count: int  # of groups
    groups: np.ndarray  # (N,) int32
    confidence: np.ndarray  # (N,) float32, the probability of the group
    runner_up: np.ndarray  # (N,) int32, the group that comes second
    nearness: np.ndarray  # (N,) float32, cosine to the prototype of the group

    @cached_property
    def sizes(self) -> np.ndarray:
        return np.bincount(self.groups, minlength=self.count)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the sizes: the numbers behind them differ in their last digits between machines."""
        return fingerprint(self.sizes)


def assign(points: Tensor, heads: Heads) -> Assignment:
    """Groups of `points` (N, d) by the best head."""
    prototypes = heads.prototypes[heads.best]  # (d, K)
    chosen, confidence, nearness = [], [], []
    for part in points.split(8192):
        top = heads.log_assignments(part, heads.best).topk(2, dim=1)
        chosen.append(top.indices)
        confidence.append(top.values[:, 0].exp())
        nearness.append((part * prototypes.T[top.indices[:, 0]]).sum(1))
    both = torch.cat(chosen).numpy()  # (N, 2)
    count = prototypes.shape[1]
    order = np.argsort(-np.bincount(both[:, 0], minlength=count), kind="stable")
    number = np.empty(count, np.int32)
    number[order] = np.arange(count)
    return Assignment(
        count, number[both[:, 0]], torch.cat(confidence).numpy(), number[both[:, 1]], torch.cat(nearness).numpy()
    )
