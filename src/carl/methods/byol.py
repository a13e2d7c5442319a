"""BYOL: bootstrap your own latent (Grill et al. 2020)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from carl.config import Config, Layer, MethodOptions, merge
from carl.data.batches.base import Batch
from carl.data.facts import DataFacts
from carl.methods.base import (
    FORWARD,
    SHAPES_BUDGET,
    Method,
    Metrics,
    encoder_and_projection,
    forward_views,
    robust_preset,
    spread,
    through,
    view_passes,
)
from carl.methods.losses import regression
from carl.models.heads import ProjectionHead
from carl.models.momentum import average_into, distance, momentum_copy
from carl.optim import cosine


class ByolOptions(MethodOptions):
    name: Literal["byol"] = "byol"
    momentum: float = Field(
        0.996, ge=0, le=1, description="Momentum of the target at the start. It ends at 1 (BYOL, section 3.3)."
    )
    final_norm: bool = Field(
        False, description="Batch norm without affine parameters after the projection, as in SimSiam. BYOL has none."
    )


# CARL's paper, appendix "BYOL and SimCLR": rate 0.03, no LARS, batch norm in the heads, all heads of one size. Decay
# 1.5e-6 and the asymmetric views are BYOL's own (section 3.3, appendix B); its warm-up is left out, as for all methods.
PAPER: Layer = {
    "views": {"pipeline": "byol"},
    "optim": {"name": "sgd", "lr": 0.03, "lr_end": 0.0, "weight_decay": 1.5e-6},
}
# A few hundred steps: a target of 0.996 would hardly leave its random start, and without the norm the views agree on
# what all images share. The loss has four times the gradient of SimSiam's, hence a quarter of its rate.
SHAPES: Layer = {"method": {"momentum": 0.95, "final_norm": True}, "optim": {"lr": 0.015, "weight_decay": 1e-4}}
# Momentum and decay are what the authors' code has for its shortest training, 40 epochs. The norm is ours, as above.
ROBUST: Layer = {"method": {"momentum": 0.97, "final_norm": True}, "optim": {"weight_decay": 1e-6}}


class BYOL(Method):
    """From one view predict the output of a slowly moving copy of the network for the other view."""

    Options = ByolOptions

    def __init__(self, config: Config, facts: DataFacts) -> None:
        super().__init__()
        self.options = ByolOptions.of(config)
        model = config.model
        self.encoder, projection = encoder_and_projection(config, facts, batch_norm=True)
        dim = projection.output_dim
        if self.options.final_norm:
            projection.append(nn.BatchNorm1d(dim, affine=False))
        predictor = ProjectionHead(dim, model.hidden_dim, dim, model.hidden_layers, True)
        self.head = nn.Sequential(OrderedDict(projection=projection, predictor=predictor))
        self.target = momentum_copy(nn.Sequential(OrderedDict(encoder=self.encoder, projection=projection)))

    @classmethod
    def presets(cls, facts: DataFacts) -> dict[str, Layer]:
        shapes = merge([PAPER, SHAPES_BUDGET, SHAPES])
        return {"paper": PAPER, "robust": robust_preset(facts, ROBUST), "shapes": shapes}

    @classmethod
    def values_in_words(cls, config: Config) -> dict[str, str]:
        values = super().values_in_words(config)
        return {**values, "momentum": f"{values['momentum']} to 1, cosine"}

    @classmethod
    def passes(cls, config: Config, sides: Sequence[int]) -> float:
        return super().passes(config, sides) + FORWARD * view_passes(sides[:2])

    def represent(self, batch: Batch) -> Tensor:
        """Predictions of both views, then their targets: (4, B, D). Each view has batch statistics of its own."""
        views = batch.views[:2]
        predictions = forward_views(self._predict, views, together=False)
        with torch.no_grad():
            targets = forward_views(self.target, views, together=False)
        return torch.cat([predictions, targets])

    def _predict(self, images: Tensor) -> Tensor:
        return through(images, self.encoder, self.head)

    def embed(self, images: Tensor) -> Tensor:
        return through(images, self.encoder, self.head.get_submodule("projection"))

    def objective(self, represented: Tensor, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        first, second, first_target, second_target = represented
        loss = regression(first, second_target) + regression(second, first_target)
        return loss, {"loss": loss, "spread": spread(first_target)}

    def momentum(self, progress: float) -> float:
        """1 - (1 - momentum) (cos(pi progress) + 1) / 2 (BYOL, section 3.3)."""
        return cosine(progress, self.options.momentum, 1.0)

    def logged(self, progress: float) -> dict[str, float]:
        return {
            "momentum": self.momentum(progress),
            "target_distance": float(distance(self.target.get_submodule("encoder"), self.encoder)),
        }

    def after_step(self, progress: float) -> None:
        momentum = self.momentum(progress)
        average_into(self.target.get_submodule("encoder"), self.encoder, momentum)
        average_into(self.target.get_submodule("projection"), self.head.get_submodule("projection"), momentum)
