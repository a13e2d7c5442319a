"""SCAN: learning to classify images without labels (Van Gansbeke et al. 2020), its second step.

An encoder that exists says which images are alike. Then encoder and groups are trained so that an image and one of its
neighbours choose the same group. N images, k neighbours, K groups, D dimensions of the embedding.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from carl import distributed
from carl.clustering import kmeans
from carl.config import Config, Layer, MethodOptions, merge
from carl.data.batches.base import Batch
from carl.data.facts import DataFacts
from carl.defaults import ADAPT
from carl.errors import UserError
from carl.methods.base import (
    SHAPES_BUDGET,
    EmbedFn,
    Method,
    Metrics,
    adapt_preset,
    assignment_figures,
    encoder_and_projection,
    forward_views,
    learned_prototypes,
    robust_preset,
    spread,
    through,
)
from carl.methods.losses import log_assignments, unit
from carl.methods.neighbour_losses import scan_loss
from carl.models.heads import Prototypes
from carl.nearest import nearest_neighbours, neighbour_count

# Of the head on the features of the start, as for the heads of `carl group` (results/groups/README.md).
START_RATE, START_BATCH, START_ITERATIONS = 0.02, 4096, 10


class ScanOptions(MethodOptions):
    name: Literal["scan"] = "scan"
    groups: int = Field(10, ge=2, description="Number of groups: about as many as the classes you expect.")
    neighbours: int | None = Field(
        None,
        ge=0,
        description="Nearest images that an image is paired with, besides itself. Unset: 20, as in SCAN, or half of an "
        "average group if that is less. 0 pairs two views of each image.",
    )
    entropy: float = Field(
        5.0, ge=0, description="Weight of the entropy that keeps all groups in use: lambda of SCAN's Eq. 2."
    )
    temperature: float = Field(0.1, gt=0, description="Temperature of the assignments, as in `carl group`.")
    head_steps: int = Field(
        100,
        ge=0,
        description="Steps before training in which only the groups learn, on fixed features. SCAN has none.",
    )


# SCAN's configuration for CIFAR-10: Adam at a constant rate of 1e-4, decay 1e-4, batch 128, and groups straight on the
# features. Differs from its paper: SimCLR's views for RandAugment and Cutout, and AdamW.
PAPER: Layer = {
    "views": {"pipeline": "simclr"},
    "model": {"head": "none"},
    "optim": {"name": "adamw", "lr": 1e-4, "lr_end": 1e-4, "weight_decay": 1e-4},
    "train": {"batch_size": 128},
}
WITHOUT_HEAD: Layer = {"model": {"head": "none"}}


class Centred(nn.Module):
    """Directions of embeddings seen from their mean, (B, D) -> (B, D): after a ReLU all point into one corner."""

    mean: Tensor  # (D,) of the unit-length embeddings at the start

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))

    def forward(self, embeddings: Tensor) -> Tensor:
        return unit(unit(embeddings) - self.mean)


class SCAN(Method):
    """An image and one of its neighbours choose the same group, while all groups stay in use."""

    Options = ScanOptions
    pairs_images: ClassVar[bool] = True
    neighbours: Tensor  # (N, 1 + k) int32: each image itself, as in SCAN's code, and its neighbours

    def __init__(self, config: Config, facts: DataFacts) -> None:
        super().__init__()
        self.options, self.seed = ScanOptions.of(config), config.train.seed
        groups, wanted = self.options.groups, self.options.neighbours
        if groups > facts.images:
            raise UserError(f"method.groups={groups} is over the {facts.images} images; ask for fewer")
        self.encoder, projection = encoder_and_projection(config, facts, batch_norm=False)
        dim = projection.output_dim
        prototypes = Prototypes(dim, groups, normalize=True, temperature=self.options.temperature)
        self.head = nn.Sequential(OrderedDict(projection=projection, centred=Centred(dim), prototypes=prototypes))
        near = neighbour_count(facts.images, groups) if wanted is None else min(wanted, facts.images - 1)
        itself = torch.arange(facts.images, dtype=torch.int32)
        self.register_buffer("neighbours", itself[:, None].repeat(1, 1 + near))

    @classmethod
    def presets(cls, facts: DataFacts) -> dict[str, Layer]:
        usual = facts.classes if facts.classes > 1 else max(2, min(100, facts.images // 20))
        groups: Layer = {"method": {"groups": usual}}
        return {
            "paper": merge([PAPER, groups]),
            "robust": robust_preset(facts, merge([WITHOUT_HEAD, groups])),
            "shapes": merge([PAPER, SHAPES_BUDGET, groups, {"optim": {"lr": 1e-3, "lr_end": 0.0}}]),
            ADAPT: adapt_preset(facts, groups),
        }

    @classmethod
    def remarks(cls, config: Config, facts: DataFacts) -> list[str]:
        if config.model.init is not None:
            return []
        return ["scan pairs images that are alike to the encoder it starts from, and random weights see little: --init"]

    @classmethod
    def prototype_count(cls, config: Config) -> int:
        return ScanOptions.of(config).groups

    def choosing_parts(self) -> list[nn.Module]:
        return [self.head.get_submodule("prototypes")]

    def represent(self, batch: Batch) -> Tensor:
        """Embeddings of the images and of their neighbours, each with batch statistics of their own: (2, B, D)."""
        return forward_views(self.embed, batch.views[:2], together=False)

    def embed(self, images: Tensor) -> Tensor:
        return through(images, self.encoder, self.head.get_submodule("projection"))

    def objective(self, represented: Tensor, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        points = self._centred()(represented.flatten(0, 1))
        energies = self.head.get_submodule("prototypes")(points)  # (2 B, K)
        log_p = log_assignments(energies).unflatten(0, represented.shape[:2])
        loss = scan_loss(log_p[0], log_p[1], self.options.entropy)
        figures = assignment_figures(log_p.detach())
        return loss, {"loss": loss, **figures, "spread": spread(represented[0])}

    def before_epoch(self, epoch: int, embed_all: EmbedFn) -> None:
        """Before the first epoch: the neighbours, which stay the same, and groups that fit the encoder's features."""
        if epoch > 0:
            return
        rows, values = embed_all(self.embed)
        embeddings = distributed.laid_out(values, rows, len(self.neighbours))
        with distributed.computing_alone():  # every process has all embeddings and finds the same
            self._centred().mean.copy_(unit(embeddings).mean(dim=0))
            points = self._centred()(embeddings)
            if near := self.neighbours.shape[1] - 1:
                self.neighbours[:, 1:] = nearest_neighbours(points, near, self.seed).int()
            self._fit_groups(points)

    def _fit_groups(self, points: Tensor) -> None:
        """Differs from the paper, whose groups begin at random: a short run would not get far from there."""
        generator = torch.Generator().manual_seed(self.seed)
        centres = kmeans(points, self.options.groups, self.seed, START_ITERATIONS).centroids
        prototypes = unit(centres.to(points.dtype)).requires_grad_()
        optimiser = torch.optim.Adam([prototypes], lr=START_RATE)
        steps, batch = self.options.head_steps, min(START_BATCH, len(points))
        for step in range(steps):
            optimiser.param_groups[0]["lr"] = START_RATE * (1 + math.cos(math.pi * step / steps)) / 2
            rows = torch.randperm(len(points), generator=generator)[:batch]
            pairs = torch.stack([points[rows], points[self._partners(rows, generator)]])
            log_p = log_assignments(pairs @ unit(prototypes).T / self.options.temperature)
            optimiser.zero_grad()
            scan_loss(log_p[0], log_p[1], self.options.entropy).backward()
            optimiser.step()
        self.head.get_parameter("prototypes.linear.weight").detach().copy_(unit(prototypes.detach()))

    def partners(self, epoch: int) -> np.ndarray | None:
        if self.neighbours.shape[1] == 1:
            return None
        generator = torch.Generator().manual_seed((1_000_003 * self.seed + epoch) % 2**40)
        return self._partners(torch.arange(len(self.neighbours)), generator).numpy()

    def _partners(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """For each row one of its neighbours or itself, drawn at random, on the CPU."""
        choice = torch.randint(self.neighbours.shape[1], (len(rows),), generator=generator)
        return self.neighbours.cpu()[rows, choice].long()

    def _centred(self) -> Centred:
        found = self.head.get_submodule("centred")
        assert isinstance(found, Centred)
        return found

    def log_assignments(self, images: Tensor) -> Tensor:
        return log_assignments(self.head(self.encoder(images)))

    def prototype_vectors(self) -> Tensor:
        return learned_prototypes(self.head)
