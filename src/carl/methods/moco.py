"""MoCo v2: momentum contrast (He et al. 2020; improved baselines, Chen et al. 2020b)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from carl.config import Config, Layer, MethodOptions, merge
from carl.data.batches.base import Batch
from carl.data.facts import DataFacts
from carl.defaults import EPOCHS
from carl.methods.base import (
    FORWARD,
    SHAPES_BUDGET,
    Method,
    Metrics,
    contrast_figures,
    encoder_and_projection,
    robust_preset,
    through,
    view_passes,
)
from carl.methods.losses import info_nce, unit
from carl.methods.paper import has_the_papers_size
from carl.models.momentum import KeyEncoder

QUEUE = 65_536  # MoCo's repository, --moco-k
SMALL_QUEUE = 4096  # the authors' demo for CIFAR-10, where more keys do not help


class MocoOptions(MethodOptions):
    name: Literal["moco"] = "moco"
    temperature: float = Field(0.2, gt=0, description="Temperature, as in MoCo v2 (--moco-t 0.2).")
    momentum: float = Field(0.999, ge=0, le=1, description="Momentum of the key encoder (--moco-m).")
    queue: int = Field(QUEUE, ge=1, description="Keys kept as negatives (--moco-k).")
    shuffle_groups: int = Field(
        8,
        ge=1,
        description="Random groups of the batch in which keys are normalised, as on the authors' 8 GPUs. 1 normalises "
        "the whole batch, as their code does on one GPU.",
    )


# CARL's paper trains MoCo as MoCo's repository does: rate 0.03, decay 1e-4 on all weights, cosine to 0, and MoCo's
# augmentation (--aug-plus).
PAPER: Layer = {
    "views": {"pipeline": "moco"},
    "optim": {"name": "sgd", "lr": 0.03, "lr_end": 0.0, "weight_decay": 1e-4, "exclude": "none"},
}
# A few hundred steps. The queue must be young against the key encoder's memory (4 steps to 100), or embeddings flee
# from old keys instead of telling images apart; the temperature of MoCo v1 leaves the flat start sooner; groups of a
# batch of 128 would be too small for batch norm on 1x1 maps.
SHAPES: Layer = {
    "method": {"momentum": 0.99, "queue": 512, "temperature": 0.07, "shuffle_groups": 1},
    "optim": {"lr": 0.06, "exclude": "1d"},
}
# The authors' own values for small images: their demo for CIFAR-10 (colab/moco_cifar10_demo.ipynb in the repository).
# A group has 64 images there, too: 8 of a batch of 512.
ROBUST: Layer = {
    "method": {"momentum": 0.99, "temperature": 0.1, "shuffle_groups": 4},
    "optim": {"weight_decay": 5e-4},
}


def fitting_queue(images: int, batch_size: int = 256) -> int:
    """The largest queue of whole batches that holds an image at most once: half of the data, capped at the paper's."""
    half = images // 2
    return min(QUEUE, half // batch_size * batch_size or max(1, half))


class MoCo(Method):
    """A query must be more similar to the key of its own image than to the keys of other images, kept in a queue."""

    Options = MocoOptions

    def __init__(self, config: Config, facts: DataFacts) -> None:
        super().__init__()
        self.options = options = MocoOptions.of(config)
        self.encoder, self.head = encoder_and_projection(config, facts, batch_norm=False)
        dim = self.head.output_dim
        self.keys = KeyEncoder(
            self.encoder,
            self.head,
            dim,
            queue=options.queue,
            momentum=options.momentum,
            groups=options.shuffle_groups,
        )

    @classmethod
    def presets(cls, facts: DataFacts) -> dict[str, Layer]:
        few = {"method": {"queue": min(SMALL_QUEUE, fitting_queue(facts.images))}}
        return {
            "paper": merge([PAPER, {"method": {"queue": QUEUE}}]),
            "robust": robust_preset(facts, merge([ROBUST, few])),
            "small": merge([PAPER, {"method": {"queue": fitting_queue(facts.images)}}]),
            "shapes": merge([PAPER, SHAPES_BUDGET, SHAPES]),
        }

    @classmethod
    def default_preset(cls, facts: DataFacts, epochs: int = EPOCHS) -> str:
        """`paper` on the paper's data; `small` where the paper's queue would hold most images more than once."""
        if facts.name == "shapes":
            return "shapes"
        return "paper" if has_the_papers_size(facts) or fitting_queue(facts.images) == QUEUE else "small"

    @classmethod
    def remarks(cls, config: Config, facts: DataFacts) -> list[str]:
        queue = MocoOptions.of(config).queue
        if queue >= QUEUE:
            return []
        return [f"a queue of {queue} keys, not MoCo's {QUEUE}: the data have {facts.images} images"]

    @classmethod
    def passes(cls, config: Config, sides: Sequence[int]) -> float:
        return super().passes(config, sides[:1]) + FORWARD * view_passes(sides[1:2])

    def represent(self, batch: Batch) -> Tensor:
        """Queries of the first view and keys of the second: (2, B, D)."""
        queries = self.embed(batch.views[0])
        return torch.stack([queries, self.keys(batch.views[1]).to(queries.dtype)])

    def embed(self, images: Tensor) -> Tensor:
        return through(images, self.encoder, self.head)

    def objective(self, represented: Tensor, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        queries, keys = represented
        loss = info_nce(queries, keys, self.keys.queue.rows, self.options.temperature)
        self.keys.remember(unit(keys))
        return loss, {"loss": loss, **contrast_figures(queries, keys)}

    def logged(self, progress: float) -> dict[str, float]:
        return self.keys.figures(self.encoder)

    def after_step(self, progress: float) -> None:
        self.keys.follow(self.encoder, self.head)
