"""Barlow Twins: self-supervised learning via redundancy reduction (Zbontar et al. 2021)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from carl import distributed
from carl.config import Config, Layer, MethodOptions
from carl.data.batches.base import Batch
from carl.data.facts import DataFacts
from carl.methods.base import (
    Method,
    Metrics,
    encoder_and_projection,
    forward_views,
    spread,
    through,
    usual_presets,
)
from carl.precision import full_precision

EPSILON = 1e-5  # added to the variance, as batch norm does in the authors' code


class BarlowOptions(MethodOptions):
    name: Literal["barlow"] = "barlow"
    redundancy: float = Field(
        0.0051, ge=0, description="Weight of the correlations between dimensions (the authors' --lambd)."
    )
    loss_scale: float = Field(
        1.0, gt=0, description="Multiplies the loss, a sum over all dimensions. 1/32 in the authors' first release."
    )


# Not in CARL's paper: the authors' LARS, decay and views (section 2.2), and the head that all methods share. The rate
# falls to a thousandth. The warm-up of 10 epochs is left out, as for all methods.
PAPER: Layer = {
    "views": {"pipeline": "byol"},
    "optim": {"name": "lars", "lr": 0.2, "lr_end": 0.0002, "scale_lr": True, "weight_decay": 1.5e-6},
}
# LARS does not feel the scale of a loss, SGD does: a sum over 128 dimensions needs the scale of the first release.
OWN: Layer = {"method": {"loss_scale": 1 / 32}, "optim": {"weight_decay": 1.5e-6}}


def correlations(first: Tensor, second: Tensor) -> Tensor:
    """Correlation of each dimension of one view with each of the other (Eq. 2): (B, D) x 2 -> (D, D).

    The batch is that of all processes. In each view, dimensions have mean 0 and variance 1.
    """
    with full_precision(first.device.type):
        first, second = (_standardised(distributed.gather(view)) for view in (first, second))  # (N, D)
        return first.T @ second / len(first)


def _standardised(rows: Tensor) -> Tensor:
    rows = rows.float() if rows.dtype.itemsize < 4 else rows
    centred = rows - rows.mean(dim=0)
    return centred * (centred.square().mean(dim=0) + EPSILON).rsqrt()


def redundancy_loss(correlation: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """Invariance and weighted redundancy, whose sum is the loss (Eq. 1): (D, D) -> (), ().

    sum_i (1 - C_ii)^2 and weight * sum_{i != j} C_ij^2: the same in both views, and no two dimensions alike.
    """
    diagonal = correlation.diagonal()
    redundancy = correlation.square().sum() - diagonal.square().sum()
    return (1 - diagonal).square().sum(), weight * redundancy


class BarlowTwins(Method):
    """Each dimension must be the same in both views and tell what no other tells. There are no negatives."""

    Options = BarlowOptions

    def __init__(self, config: Config, facts: DataFacts) -> None:
        super().__init__()
        self.options = BarlowOptions.of(config)
        self.encoder, self.head = encoder_and_projection(config, facts, batch_norm=True)

    @classmethod
    def presets(cls, facts: DataFacts) -> dict[str, Layer]:
        return usual_presets(facts, PAPER, OWN)

    def represent(self, batch: Batch) -> Tensor:
        """Embeddings of both views, each with batch statistics of its own: (2, B, D)."""
        return forward_views(self.embed, batch.views[:2], together=False)

    def embed(self, images: Tensor) -> Tensor:
        return through(images, self.encoder, self.head)

    def objective(self, represented: Tensor, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        first, second = represented
        terms = redundancy_loss(correlations(first, second), self.options.redundancy)
        invariance, redundancy = (self.options.loss_scale * term for term in terms)
        loss = invariance + redundancy
        return loss, {"loss": loss, "invariance": invariance, "redundancy": redundancy, "spread": spread(first)}
