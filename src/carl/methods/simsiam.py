"""SimSiam: exploring simple Siamese representation learning (Chen and He 2021)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from carl.config import Config, Layer, MethodOptions, merge
from carl.data.batches.base import Batch
from carl.data.facts import DataFacts
from carl.methods.base import (
    SHAPES_BUDGET,
    Method,
    Metrics,
    encoder_and_projection,
    forward_views,
    robust_preset,
    spread,
    through,
)
from carl.methods.losses import regression
from carl.models.heads import ProjectionHead


class SimsiamOptions(MethodOptions):
    name: Literal["simsiam"] = "simsiam"
    predictor_dim: int = Field(
        32, ge=1, description="Neurons in the predictor's hidden layer: a quarter of its input, as in SimSiam."
    )


# Not in CARL's paper: SimSiam's own rate, 0.05 for a batch of 256, and decay 1e-4 (section 3); the head that all share.
PAPER: Layer = {
    "views": {"pipeline": "moco"},
    "optim": {"name": "sgd", "lr": 0.05, "lr_end": 0.0, "weight_decay": 1e-4},
}
ROBUST: Layer = {"optim": {"weight_decay": 1e-4}}  # SimSiam's own, as in `paper`; all else is what all methods share


class SimSiam(Method):
    """From one view predict the other, which carries no gradient. There are no negatives and no momentum copy."""

    Options = SimsiamOptions

    def __init__(self, config: Config, facts: DataFacts) -> None:
        super().__init__()
        options = SimsiamOptions.of(config)
        self.encoder, projection = encoder_and_projection(config, facts, batch_norm=True)
        dim = projection.output_dim
        # The authors' projection ends with a batch norm (section 3); without it accuracy falls a little (table 3).
        projection.append(nn.BatchNorm1d(dim, affine=False))
        predictor = ProjectionHead(dim, options.predictor_dim, dim, hidden_layers=1, batch_norm=True)
        self.head = nn.Sequential(OrderedDict(projection=projection, predictor=predictor))

    @classmethod
    def presets(cls, facts: DataFacts) -> dict[str, Layer]:
        shapes = merge([PAPER, SHAPES_BUDGET, {"optim": {"lr": 0.06}}])
        return {"paper": PAPER, "robust": robust_preset(facts, ROBUST), "shapes": shapes}

    def represent(self, batch: Batch) -> Tensor:
        """Predictions of both views, then what was to be predicted: (4, B, D)."""
        embeddings = forward_views(self.embed, batch.views[:2], together=False)  # (2, B, D)
        predictor = self.head.get_submodule("predictor")
        return torch.cat([torch.stack([predictor(view) for view in embeddings]), embeddings.detach()])

    def embed(self, images: Tensor) -> Tensor:
        return through(images, self.encoder, self.head.get_submodule("projection"))

    def objective(self, represented: Tensor, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        first, second, first_target, second_target = represented
        loss = (regression(first, second_target) + regression(second, first_target)) / 4 - 1  # mean of -cos
        return loss, {"loss": loss, "spread": spread(first_target)}
