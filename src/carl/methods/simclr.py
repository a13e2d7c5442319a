"""SimCLR: a simple framework for contrastive learning of visual representations (Chen et al. 2020)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from carl.config import Config, Layer, MethodOptions, merge
from carl.data.batches.base import Batch
from carl.data.facts import DataFacts
from carl.defaults import ADAPT
from carl.methods.base import (
    SHAPES_BUDGET,
    Method,
    Metrics,
    adapt_preset,
    contrast_figures,
    encoder_and_projection,
    forward_views,
    robust_preset,
    through,
)
from carl.methods.losses import nt_xent


class SimclrOptions(MethodOptions):
    name: Literal["simclr"] = "simclr"
    temperature: float = Field(
        0.2, gt=0, description="Temperature: 0.2 in CARL's paper (appendix A), 0.5 in SimCLR's own paper."
    )
    head_norm: bool = Field(
        False,
        description="Batch norm after both layers of the projection head, as in the authors' code. CARL's paper has "
        "none.",
    )
    views_together: bool = Field(True, description="Both views in one forward pass, as in the authors' code.")


# CARL's paper, appendix "BYOL and SimCLR": rate 0.03, no LARS. Decay 1e-6 is SimCLR's own (section 2.3); so is a
# warm-up of 10 epochs, left out for the schedule that all methods share.
PAPER: Layer = {
    "views": {"pipeline": "simclr"},
    "optim": {"name": "sgd", "lr": 0.03, "lr_end": 0.0, "weight_decay": 1e-6},
}
# The norms are those of the authors' code. The temperature is the better of 0.2 and 0.115 on held-out training images
# (results/robustness/): 0.115 is as sharp as the assignments of CARL's `robust`. Decay as in `paper`.
ROBUST: Layer = {"method": {"temperature": 0.115, "head_norm": True}, "optim": {"weight_decay": 1e-6}}


# The temperature is the best of 0.03, 0.05, 0.1 and 0.2 on held-out training images (results/adapt/README.md).
ADAPTED: Layer = {"method": {"temperature": 0.05, "head_norm": False}}


class SimCLR(Method):
    """Two views of one image must be more similar than any other two views in the batch."""

    Options = SimclrOptions

    def __init__(self, config: Config, facts: DataFacts) -> None:
        super().__init__()
        self.options = SimclrOptions.of(config)
        self.encoder, self.head = encoder_and_projection(config, facts, batch_norm=self.options.head_norm)
        if self.options.head_norm:
            self.head.append(nn.BatchNorm1d(self.head.output_dim))

    @classmethod
    def presets(cls, facts: DataFacts) -> dict[str, Layer]:
        shapes = merge([PAPER, SHAPES_BUDGET, {"optim": {"lr": 0.06}}])
        robust, adapted = robust_preset(facts, ROBUST), adapt_preset(facts, ADAPTED)
        return {"paper": PAPER, "robust": robust, "shapes": shapes, ADAPT: adapted}

    @classmethod
    def compared_pairs(cls, config: Config) -> int:
        """Each of the 2B views with the 2(B - 1) views of other images, every pair counted once."""
        batch = config.train.batch_size
        return 2 * batch * (batch - 1)

    def represent(self, batch: Batch) -> Tensor:
        return forward_views(self.embed, batch.views[:2], self.options.views_together)  # (2, B, D)

    def embed(self, images: Tensor) -> Tensor:
        return through(images, self.encoder, self.head)

    def objective(self, represented: Tensor, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        first, second = represented
        loss = nt_xent(first, second, self.options.temperature)
        return loss, {"loss": loss, **contrast_figures(first, second)}
