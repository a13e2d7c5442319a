"""Training with labels: the upper bound in the paper's table 2."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from carl.config import Config, Layer, MethodOptions, merge
from carl.data.batches.base import Batch
from carl.data.facts import DataFacts
from carl.errors import UserError
from carl.methods.base import SHAPES_BUDGET, Method, Metrics, robust_preset, spread, through
from carl.methods.losses import log_assignments
from carl.models.encoders import build_learning_encoder, feature_size


class SupervisedOptions(MethodOptions):
    name: Literal["supervised"] = "supervised"


# CARL's paper, appendix "Supervised": SGD, rate 0.03, cosine to 0, a lighter augmentation. No decay is named: CARL's.
PAPER: Layer = {
    "views": {"pipeline": "supervised"},
    "optim": {"name": "sgd", "lr": 0.03, "lr_end": 0.0, "weight_decay": 5e-4},
}
ROBUST: Layer = {"optim": {"weight_decay": 5e-4}}  # as in `paper`


class Supervised(Method):
    """Cross-entropy of the labels through a linear layer on the encoder."""

    Options = SupervisedOptions
    views_needed = 1
    most_views = 1
    needs_labels = True

    def __init__(self, config: Config, facts: DataFacts) -> None:
        super().__init__()
        if facts.classes < 2:
            raise UserError(f"{facts.name} has {facts.classes} classes; supervised training needs at least 2")
        self.encoder = build_learning_encoder(config.model, facts.channels, facts.image_size)
        self.head = nn.Linear(feature_size(self.encoder, facts.channels, facts.image_size), facts.classes)

    @classmethod
    def presets(cls, facts: DataFacts) -> dict[str, Layer]:
        views: Layer = {"views": {"pipeline": "supervised"}, "optim": {"lr": 0.06}}
        shapes = merge([PAPER, SHAPES_BUDGET, views])
        return {"paper": PAPER, "robust": robust_preset(facts, ROBUST), "shapes": shapes}

    def represent(self, batch: Batch) -> Tensor:
        scores: Tensor = self.head(self.embed(batch.views[0]))
        return scores[None]  # (1, B, classes)

    def embed(self, images: Tensor) -> Tensor:
        return through(images, self.encoder)

    def objective(self, represented: Tensor, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        assert batch.labels is not None
        log_p = log_assignments(represented[0])
        loss = F.nll_loss(log_p, batch.labels)
        accuracy = (log_p.argmax(dim=1) == batch.labels).float().mean()
        return loss, {"loss": loss, "train_accuracy": accuracy, "spread": spread(represented[0])}
