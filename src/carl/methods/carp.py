"""CARP: consistent assignment of views over random partitions (Silva and Ramirez Rivera 2023), CARL's successor."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from carl.config import Config, Layer, MethodOptions, merge
from carl.data.batches.base import Batch
from carl.data.facts import DataFacts
from carl.errors import UserError
from carl.methods.base import (
    FORWARD,
    SHAPES_BUDGET,
    Method,
    Metrics,
    assignment_figures,
    encoder_and_projection,
    forward_views,
    learned_prototypes,
    robust_preset,
    through,
    view_passes,
)
from carl.methods.losses import assignment_consistency, log_assignments, uniform_prior
from carl.models.heads import Prototypes
from carl.models.momentum import average_into, distance, momentum_copy
from carl.optim import cosine


class CarpOptions(MethodOptions):
    """Defaults are those of the authors' repository."""

    name: Literal["carp"] = "carp"
    prototypes: int = Field(65_536, ge=2, description="Number of prototypes, K, in all partitions together.")
    partition_size: int = Field(
        512, ge=2, description="Prototypes in each random partition. Partitions are drawn anew at every step."
    )
    momentum: float = Field(
        0.99, ge=0, le=1, description="Momentum of the teacher at the start. It rises to 1 along a cosine."
    )


# Not in CARL's paper: the authors' LARS, decay and crops (main_carp.py), with two views and the head that all share.
PAPER: Layer = {
    "views": {"pipeline": "simclr", "crop_min": 0.2},
    "optim": {"name": "lars", "lr": 0.45, "lr_end": 0.0048, "scale_lr": True, "weight_decay": 1e-6},
}
# Ours, for thousands of images: as many prototypes as images would learn nothing in a short run.
ROBUST: Layer = {"method": {"prototypes": 1024, "partition_size": 128}, "optim": {"weight_decay": 1e-6}}
SHAPES: Layer = {"method": {"prototypes": 100, "partition_size": 25, "momentum": 0.95}}


def random_partition(prototypes: int, size: int, seed: int, progress: float) -> Tensor:
    """Prototypes in random groups of `size`, (G, size): a function of seed and progress. A rest is left out.

    Without state, so that a resumed run draws the same, and so do all processes.
    """
    digest = hashlib.sha256(f"partition at {progress!r} of seed {seed}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    order = torch.randperm(prototypes, generator=generator, device="cpu")
    return order[: prototypes // size * size].view(-1, size)


class CARP(Method):
    """In each random part of the prototypes, a view must choose what the teacher chooses for another (section 3)."""

    Options = CarpOptions
    most_views = None

    def __init__(self, config: Config, facts: DataFacts) -> None:
        super().__init__()
        self.options, self.seed = CarpOptions.of(config), config.train.seed
        self.encoder, projection = encoder_and_projection(config, facts, batch_norm=True)
        prototypes = Prototypes(projection.output_dim, self.options.prototypes, normalize=True)
        self.head = nn.Sequential(OrderedDict(projection=projection, prototypes=prototypes))
        self.teacher = momentum_copy(nn.Sequential(OrderedDict(encoder=self.encoder, head=self.head)))

    @classmethod
    def presets(cls, facts: DataFacts) -> dict[str, Layer]:
        robust = robust_preset(facts, ROBUST)
        return {"paper": PAPER, "robust": robust, "shapes": merge([robust, SHAPES_BUDGET, SHAPES])}

    @classmethod
    def completed(cls, config: Config) -> Config:
        options = CarpOptions.of(config)
        if options.partition_size > options.prototypes:
            raise UserError(
                f"method.partition_size={options.partition_size} is over the {options.prototypes} prototypes; use at "
                f"most {options.prototypes}"
            )
        return config

    @classmethod
    def values_in_words(cls, config: Config) -> dict[str, str]:
        values = super().values_in_words(config)
        return {**values, "momentum": f"{values['momentum']} to 1, cosine"}

    @classmethod
    def prototype_count(cls, config: Config) -> int:
        return CarpOptions.of(config).prototypes

    @classmethod
    def passes(cls, config: Config, sides: Sequence[int]) -> float:
        return super().passes(config, sides) + FORWARD * view_passes(sides[:2])

    def choosing_parts(self) -> list[nn.Module]:
        return [self.head.get_submodule("prototypes")]

    def represent(self, batch: Batch) -> Tensor:
        """Energies of all views, then the teacher's of the first two: (V + 2, B, K)."""
        energies = forward_views(self._energies, batch.views, together=True)
        with torch.no_grad():
            taught = forward_views(self.teacher, batch.views[:2], together=True)
        return torch.cat([energies, taught])

    def _energies(self, images: Tensor) -> Tensor:
        return through(images, self.encoder, self.head)

    def objective_input(self, embeddings: Tensor) -> Tensor:
        energies: Tensor = self.head.get_submodule("prototypes")(embeddings)
        return energies

    def objective(self, represented: Tensor, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        """Eq. 4 and 5: both terms are means over the partitions, and none is weighted."""
        views, options = len(batch.views), self.options
        places = random_partition(options.prototypes, options.partition_size, self.seed, progress).to(
            represented.device
        )
        grouped = represented.index_select(2, places.flatten()).unflatten(2, places.shape)  # (V + 2, B, G, size)
        log_p = log_assignments(torch.cat([grouped[:views], grouped[views:].detach()]))
        pairs = [(view, target) for view in range(views) for target in range(2) if view != target]
        found = [assignment_consistency(log_p[view], log_p[views + target]) for view, target in pairs]
        consistency = torch.stack(found).mean() / len(places)
        prior = uniform_prior(log_p) / len(places)  # the teacher's assignments are in the mean, without a gradient
        loss = consistency + prior
        figures = assignment_figures(log_assignments(represented[:views].detach()))
        return loss, {"loss": loss, "consistency": consistency, "kl": prior, **figures}

    def momentum(self, progress: float) -> float:
        return cosine(progress, self.options.momentum, 1.0)

    def logged(self, progress: float) -> dict[str, float]:
        behind = float(distance(self.teacher.get_submodule("encoder"), self.encoder))
        return {"momentum": self.momentum(progress), "target_distance": behind}

    def after_step(self, progress: float) -> None:
        momentum = self.momentum(progress)
        average_into(self.teacher.get_submodule("encoder"), self.encoder, momentum)
        average_into(self.teacher.get_submodule("head"), self.head, momentum)

    def embed(self, images: Tensor) -> Tensor:
        return through(images, self.encoder, self.head.get_submodule("projection"))

    def log_assignments(self, images: Tensor) -> Tensor:
        return log_assignments(self._energies(images))

    def prototype_vectors(self) -> Tensor:
        return learned_prototypes(self.head)
