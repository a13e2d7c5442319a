"""VICReg: variance-invariance-covariance regularization (Bardes et al. 2022), with EMP-SSL's loss for many views."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

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
from carl.methods.losses import unit
from carl.precision import full_precision

EPSILON = 1e-4  # added to the variance, as in the authors' code


class VicregOptions(MethodOptions):
    name: Literal["vicreg"] = "vicreg"
    regulariser: Literal["variance", "coding-rate"] = Field(
        "variance",
        description="What keeps embeddings apart: variance and covariance (VICReg), or the coding rate of EMP-SSL. "
        "The latter is meant for many views (`views.count`) and compares directions only.",
    )
    invariance: float = Field(
        25.0, ge=0, description="Weight of the distance between views (the authors' --sim-coeff)."
    )
    variance: float = Field(25.0, ge=0, description="Weight of the variance of each dimension (--std-coeff).")
    covariance: float = Field(1.0, ge=0, description="Weight of the covariance between dimensions (--cov-coeff).")
    similarity: float = Field(
        200.0,
        ge=0,
        description="With coding-rate: weight of the cosine between a view and the mean of its image's views.",
    )
    coding_epsilon: float = Field(
        0.2, gt=0, description="With coding-rate: how finely directions are told apart (EMP-SSL's --eps)."
    )
    loss_scale: float = Field(
        1.0,
        gt=0,
        description="Multiplies the loss. It makes no difference to LARS; SGD with EMP-SSL's weights needs 0.005.",
    )


# Not in CARL's paper: the authors' LARS, decay and views (section 4.2), and the head that all methods share; theirs has
# three layers of 8,192. The rate falls to a hundredth, and the warm-up is left out, as for all methods.
PAPER: Layer = {
    "views": {"pipeline": "byol"},
    "optim": {"name": "lars", "lr": 0.2, "lr_end": 0.002, "scale_lr": True, "weight_decay": 1e-6},
}
OWN: Layer = {"optim": {"weight_decay": 1e-6}}


def invariance(views: Tensor) -> Tensor:
    """Squared distance of two views of an image, mean over all pairs of its views and the dimensions: (V, B, D) -> ().

    sum over pairs |z_a - z_b|^2 = V sum_v |z_v - mean|^2, so the work grows with the views and not with the pairs. With
    two views it is VICReg's term (Eq. 5, over D as in the authors' code).
    """
    return 2 * (views - views.mean(dim=0)).square().mean(dim=(1, 2)).sum() / (len(views) - 1)


def variance(views: Tensor) -> Tensor:
    """How far the deviation of each dimension is below 1, mean over all and the views (Eq. 1, 2): (V, N, D) -> ()."""
    return F.relu(1 - (views.var(dim=1) + EPSILON).sqrt()).mean()


def covariance(views: Tensor) -> Tensor:
    """Squares of the covariances between dimensions, over D, for two views (Eq. 3, 4): (V, N, D) -> ().

    VICReg adds its two views; with more it is twice their mean.
    """
    centred = views - views.mean(dim=1, keepdim=True)
    matrix = centred.mT @ centred / (views.shape[1] - 1)  # (V, D, D)
    squares = matrix.square().sum(dim=(1, 2)) - matrix.diagonal(dim1=1, dim2=2).square().sum(dim=1)
    return 2 * squares.mean() / views.shape[2]


def coding_rate(directions: Tensor, epsilon: float) -> Tensor:
    """Half the log-determinant of I + D / (N epsilon) Z^T Z, mean over views (EMP-SSL, Eq. 2): (V, N, D) -> ().

    The matrix is positive definite; a Cholesky factor gives the determinant without asking the device.
    """
    count, dim = directions.shape[1:]
    matrix = dim / (count * epsilon) * directions.mT @ directions
    matrix = matrix + torch.eye(dim, dtype=matrix.dtype, device=matrix.device)
    factor, _ = torch.linalg.cholesky_ex(matrix)
    rate: Tensor = factor.diagonal(dim1=1, dim2=2).log().sum(dim=1).mean()
    return rate


def similarity(directions: Tensor) -> Tensor:
    """Cosine of each view and the mean of its image's views (EMP-SSL, Eq. 3): (V, B, D) -> ()."""
    return F.cosine_similarity(directions, directions.mean(dim=0, keepdim=True), dim=-1).mean()


class VICReg(Method):
    """Views of an image are close; dimensions vary, and no two of them tell the same. There are no negatives."""

    Options = VicregOptions
    most_views = None

    def __init__(self, config: Config, facts: DataFacts) -> None:
        super().__init__()
        self.options = VicregOptions.of(config)
        self.encoder, self.head = encoder_and_projection(config, facts, batch_norm=True)

    @classmethod
    def presets(cls, facts: DataFacts) -> dict[str, Layer]:
        return usual_presets(facts, PAPER, OWN)

    def represent(self, batch: Batch) -> Tensor:
        """Embeddings of all views, (V, B, D); two have batch statistics of their own, as in VICReg, more share them."""
        return forward_views(self.embed, batch.views, together=len(batch.views) > 2)

    def embed(self, images: Tensor) -> Tensor:
        return through(images, self.encoder, self.head)

    def objective(self, represented: Tensor, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        options = self.options
        with full_precision(represented.device.type):
            views = represented.float() if represented.dtype.itemsize < 4 else represented
            if options.regulariser == "coding-rate":
                views = unit(views)
            everything = distributed.gather(views.transpose(0, 1)).transpose(0, 1)  # (V, N, D)
            if options.regulariser == "coding-rate":
                terms = {
                    "similarity": -options.similarity * similarity(views),
                    "coding_rate": -coding_rate(everything, options.coding_epsilon),
                }
            else:
                terms = {
                    "invariance": options.invariance * invariance(views),
                    "variance": options.variance * variance(everything),
                    "covariance": options.covariance * covariance(everything),
                }
        loss = options.loss_scale * torch.stack(list(terms.values())).sum()
        return loss, {"loss": loss, **terms, "spread": spread(represented[0])}
