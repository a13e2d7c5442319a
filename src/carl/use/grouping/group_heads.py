"""Heads that put points into groups: prototypes on the sphere, trained so that neighbours choose the same group.

Several heads are trained side by side from different starts, as parts of one product of matrices, and the best is
chosen without labels. N points, d dimensions, B pairs of a step, H heads, K groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from carl.clustering import kmeans
from carl.errors import UserError
from carl.methods.carl import CARLLoss
from carl.methods.losses import log_assignments
from carl.methods.neighbour_losses import scan_loss, temi_loss
from carl.terminal import Progress, silent
from carl.use.requests import GroupLoss

START_POINTS = 20_000  # that the first centres are found from
START_ITERATIONS = 10  # of k-means: a start, not an answer
JUDGED_POINTS = 20_000  # that heads are compared on


@dataclass(frozen=True)
class HeadOptions:
    """How heads are trained. Defaults without a source were chosen on held-out training images (results/groups)."""

    loss: GroupLoss = "carl"
    heads: int = 8
    steps: int = 100
    batch: int = 4096  # pairs per step
    rate: float = 0.02  # of Adam, falls to zero along a cosine
    temperature: float = 0.1
    prior: float = 2.0  # lambda of Eq. 7
    entropy: float = 5.0  # lambda of SCAN's Eq. 2, as in its paper
    beta: float = 0.6  # as in TEMI's paper
    teacher: float = 0.9  # momentum of TEMI's teacher; 0.996 in its paper, whose training has 100 times the steps
    marginal: float = 0.9  # momentum of TEMI's mean assignment, as in its code


def head_count(groups: int) -> int:
    """Heads to choose from: many where groups are few, since the time grows with heads times groups."""
    return max(4, min(16, 600 // groups))


@dataclass(frozen=True, eq=False)
class Heads:
    """Prototypes of several heads, and how good each head is by the criterion that needs no labels."""

    prototypes: Tensor  # (H, d, K), columns of unit length
    temperature: float
    scores: Tensor  # (H,) higher is better

    @property
    def best(self) -> int:
        return int(self.scores.argmax())

    def log_assignments(self, points: Tensor, head: int) -> Tensor:
        """(n, d) -> (n, K)"""
        return log_assignments(points @ self.prototypes[head] / self.temperature)


def train_heads(
    points: Tensor,
    neighbours: Tensor,
    groups: int,
    options: HeadOptions,
    seed: int = 0,
    *,
    views: Sequence[Tensor] = (),
    progress: Progress = silent,
) -> Heads:
    """Heads for `groups` groups of `points` (N, d), whose positives are `neighbours` (N, k) and `views`, V x (N, d).

    With no neighbours (k = 0) the positives are the views, and without these the point itself: the loss is then
    CARL's for two identical views.
    """
    check_groups(groups, len(points))
    generator = torch.Generator().manual_seed(seed)
    weights = _start(points, groups, options, generator)  # (d, H K)
    trainer = TRAINING[options.loss](options, groups)
    weights.requires_grad_()
    optimiser = torch.optim.Adam([weights], lr=options.rate)
    batch = min(options.batch, len(points))
    for step in range(options.steps):
        optimiser.param_groups[0]["lr"] = options.rate * (1 + math.cos(math.pi * step / options.steps)) / 2
        rows = _drawn(len(points), batch, generator)
        pairs = torch.stack([points[rows], positives(points, neighbours, views, rows, generator)])  # (2, B, d)
        loss = trainer(pairs, weights)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        progress("grouping", step + 1, options.steps)
    found = trainer.result(weights).view(points.shape[1], options.heads, groups).transpose(0, 1)
    found = F.normalize(found, dim=1).contiguous()
    scores = torch.stack([neighbour_information(points, neighbours, one, options.temperature) for one in found])
    return Heads(found, options.temperature, scores)


def check_groups(groups: int, images: int) -> None:
    if groups < 2:
        raise UserError(f"--groups {groups}: one group holds everything; ask for 2 or more")
    if groups > images:
        raise UserError(f"--groups {groups} of {images} images: there cannot be more groups than images; ask for fewer")


def _drawn(total: int, batch: int, generator: torch.Generator) -> Tensor:
    """All points if they fit into a batch; of very many, repetitions do no harm and a permutation would cost."""
    if batch == total:
        return torch.arange(total)
    return torch.randint(total, (batch,), generator=generator)


def positives(
    points: Tensor, neighbours: Tensor, views: Sequence[Tensor], rows: Tensor, generator: torch.Generator
) -> Tensor:
    """For each row one of its neighbours or views, drawn at random."""
    near = neighbours.shape[1]
    if near + len(views) == 0:
        return points[rows]
    choice = torch.randint(near + len(views), (len(rows),), generator=generator)
    found = points[neighbours[rows, choice.clamp(max=near - 1)]] if near else points[rows]
    for number, view in enumerate(views):
        is_view = choice == near + number
        found[is_view] = view[rows[is_view]]
    return found


def _start(points: Tensor, groups: int, options: HeadOptions, generator: torch.Generator) -> Tensor:
    """Prototypes of all heads, (d, H K): the centres of a short k-means, each head's from another draw of points."""
    sample = points[_drawn(len(points), min(len(points), START_POINTS), generator)]
    seeds = torch.randint(2**31, (options.heads,), generator=generator).tolist()
    centres = [kmeans(sample, groups, seed, START_ITERATIONS).centroids for seed in seeds]
    return F.normalize(torch.cat(centres), dim=1).T.contiguous()


def _log_p(points: Tensor, weights: Tensor, options: HeadOptions) -> Tensor:
    """Log-assignments by every head: (2, B, d), (d, H K) -> (2, B, H, K)."""
    return log_assignments(_energies(points, weights, options))


def _energies(points: Tensor, weights: Tensor, options: HeadOptions) -> Tensor:
    cosines = points @ F.normalize(weights, dim=0)
    return (cosines / options.temperature).view(*points.shape[:-1], options.heads, -1)


class _Training:
    """A loss over pairs of points (2, B, d) as a function of the heads' weights (d, H K)."""

    def __init__(self, options: HeadOptions, groups: int) -> None:
        self.options, self.groups = options, groups

    def __call__(self, pairs: Tensor, weights: Tensor) -> Tensor:
        raise NotImplementedError

    def result(self, weights: Tensor) -> Tensor:
        return weights.detach()


class _Carl(_Training):
    """Eq. 7. Heads are to it what parts of an embedding are: it sums over them."""

    def __call__(self, pairs: Tensor, weights: Tensor) -> Tensor:
        first, second = _energies(pairs, weights, self.options)
        loss: Tensor = CARLLoss(targets="joint")(first, second, self.options.prior)
        return loss


class _Scan(_Training):
    def __call__(self, pairs: Tensor, weights: Tensor) -> Tensor:
        first, second = _log_p(pairs, weights, self.options)
        return scan_loss(first, second, self.options.entropy)


class _Temi(_Training):
    """A teacher, the moving average of the heads, gives the targets and the mean assignment."""

    def __init__(self, options: HeadOptions, groups: int) -> None:
        super().__init__(options, groups)
        self.teacher: Tensor | None = None
        self.marginal = torch.full((options.heads, groups), 1 / groups)

    def __call__(self, pairs: Tensor, weights: Tensor) -> Tensor:
        with torch.no_grad():
            momentum = self.options.teacher
            self.teacher = weights.clone() if self.teacher is None else self.teacher.lerp(weights, 1 - momentum)
            targets = _log_p(pairs, self.teacher, self.options)
            self.marginal = self.marginal.lerp(targets.exp().mean(dim=(0, 1)), 1 - self.options.marginal)
        log_p = _log_p(pairs, weights, self.options)
        return temi_loss(log_p, targets, self.marginal.log(), self.options.beta)

    def result(self, weights: Tensor) -> Tensor:
        return weights.detach() if self.teacher is None else self.teacher


TRAINING: dict[GroupLoss, type[_Training]] = {"carl": _Carl, "temi": _Temi, "scan": _Scan}


def neighbour_information(points: Tensor, neighbours: Tensor, prototypes: Tensor, temperature: float) -> Tensor:
    """Mutual information, in nats, of the groups of a point and of its neighbours: how well one tells the other.

    It is high where neighbours agree and groups are of similar size, and needs no labels. Of very many points it is
    measured on some.
    """
    rows = torch.arange(0, len(points), -(-len(points) // JUDGED_POINTS))
    joint = torch.zeros(prototypes.shape[1], prototypes.shape[1])
    for part in rows.split(1024):
        own = log_assignments(points[part] @ prototypes / temperature).exp()
        others = log_assignments(points[neighbours[part]] @ prototypes / temperature).exp()  # (n, k, K)
        joint += own.T @ (others.mean(dim=1) if others.shape[1] else own)
    joint = (joint + joint.T) / (2 * len(rows))
    margin = joint.sum(0)
    return (joint * (joint.clamp(min=1e-12).log() - margin.outer(margin).clamp(min=1e-12).log())).sum()
