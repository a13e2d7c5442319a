"""A method: both views of an image must be predicted alike by a linear layer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from carl.config import Config, Layer, MethodOptions
from carl.data.batches.base import Batch
from carl.data.facts import DataFacts
from carl.methods.base import Method, Metrics, forward_views, robust_preset, spread, through
from carl.models.encoders import build_encoder, feature_size


class ToyOptions(MethodOptions):
    name: Literal["toy"] = "toy"
    size: int = Field(8, ge=1, description="Outputs of the linear layer.")


class ToyMethod(Method):
    """Outputs of two views must be near each other and, over the batch, of variance one."""

    Options = ToyOptions

    def __init__(self, config: Config, facts: DataFacts) -> None:
        super().__init__()
        self.encoder = build_encoder(config.model, facts.channels, facts.image_size)
        features = feature_size(self.encoder, facts.channels, facts.image_size)
        self.head = nn.Linear(features, ToyOptions.of(config).size)

    @classmethod
    def presets(cls, facts: DataFacts) -> dict[str, Layer]:
        return {"paper": {"optim": {"name": "sgd", "lr": 0.01}}, "robust": robust_preset(facts, {}), "shapes": {}}

    def represent(self, batch: Batch) -> Tensor:
        return forward_views(self.embed, batch.views[:2], together=True)

    def embed(self, images: Tensor) -> Tensor:
        return through(images, self.encoder, self.head)

    def objective(self, represented: Tensor, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        first, second = represented.float()
        loss = (first - second).square().mean() + (first.std(dim=0) - 1).square().mean()
        return loss, {"loss": loss, "spread": spread(first)}
