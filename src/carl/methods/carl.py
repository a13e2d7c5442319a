"""CARL: consistent assignment of views to clusters (Silva and Ramirez Rivera, SAC 2022)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from carl.config import Config, Layer, MethodOptions
from carl.data.batches import Batch
from carl.errors import UserError
from carl.losses import PriorMean, Targets, consistency, log_assignments, uniform_prior
from carl.methods.base import DataFacts, Method, Metrics, assignment_figures, forward_views
from carl.models.encoders import build_encoder, feature_size
from carl.models.heads import EmbeddingNorm, ProjectionHead, Prototypes
from carl.optim import lambda_schedule


class CarlOptions(MethodOptions):
    """Options of CARL. Where the paper is silent, the default and its source are named."""

    name: Literal["carl"] = "carl"
    prototypes: int = Field(100, ge=2, description="K. About ten times the classes you expect (paper, section 4.2).")
    prior_start: float = Field(4.0, ge=0, description="b of Eq. 8; below 2 the uniform start is not stable.")
    prior_end: float = Field(1.5, ge=0, description="a of Eq. 8.")
    prior_epochs: int | None = Field(
        None, ge=0, description="E of Eq. 8; unset is min(100, half the epochs): 100 in the paper's section 4."
    )
    prior_schedule: Literal["linear", "cosine", "exponential", "constant"] = Field(
        "linear", description="Shape of the decay; the paper's is linear and says that others would serve."
    )
    prior_by: Literal["epoch", "step"] = Field(
        "epoch", description="Whether lambda changes once an epoch (Eq. 8 counts epochs) or at each step."
    )
    prior_mean: PriorMean = Field("all", description="Mean of Eq. 6 over all views (CARP), or each view its own.")
    targets: Targets = Field("joint", description="How gradients flow in Eq. 4; `average` is the authors' later code.")
    views_together: bool = Field(
        True, description="Both views in one forward pass (SwAV, CARP); off, each has batch statistics of its own."
    )
    prototype_bias: bool = Field(False, description="Eq. 2 has none; CARP has none.")
    prototype_norm: bool = Field(False, description="Unit-norm prototypes, as CARP; Eq. 2 has plain inner products.")
    prototype_scale: float | None = Field(
        None, gt=0, description="Std of the prototypes at the start; unset is torch's default for a linear layer."
    )
    embedding_norm: EmbeddingNorm = Field(
        "none", description="none (Eq. 2), l2 (unit length), or batch (batch norm without affine parameters)."
    )
    temperature: float = Field(1.0, gt=0, description="Divides the energies; Eq. 3 has none.")


# Number of prototypes K and the prior's (start b, end a): sections 4.1, 4.2 and appendix A of the paper.
# Lambda for 64-px ImageNet, and all of Tiny-ImageNet, are not in the paper: CIFAR's lambda, CIFAR-100's K.
PAPER_VALUES = {
    "cifar10": (100, 4.0, 1.5),
    "cifar100": (300, 4.0, 1.5),
    "stl10": (300, 2.0, 1.0),
    "imagenet64": (3000, 4.0, 1.5),
    "tiny-imagenet": (300, 4.0, 1.5),
}


# The built-in data are not in the paper. Values of ours for a run of minutes on a CPU: embeddings of equal variance and
# logits of about unit size learn from the first epoch; the views keep most of the figure, and no hue.
SHAPES_VALUES: Layer = {
    "data": {"image_size": 24},
    "views": {"pipeline": "simclr", "crop_min": 0.6, "hue": 0.5, "grey": 0.5},
    "method": {
        "prototypes": 100,
        "prior_start": 4.0,
        "prior_end": 2.0,
        "embedding_norm": "batch",
        "prototype_scale": 0.088,  # 1 / sqrt(128)
    },
    "optim": {"name": "sgd", "lr": 0.06},
    "train": {"epochs": 8, "batch_size": 128},
}


class CARL(Method):
    """Two views of an image must choose the same of K prototypes, while all prototypes stay in use (Eq. 7)."""

    Options = CarlOptions

    def __init__(self, config: Config, facts: DataFacts) -> None:
        super().__init__()
        assert isinstance(config.method, CarlOptions)
        self.options, self.epochs = config.method, config.train.epochs
        model = config.model
        self.encoder = build_encoder(model, facts.channels, facts.image_size)
        features = feature_size(self.encoder, facts.channels, facts.image_size)
        options = self.options
        projection = ProjectionHead(features, model.hidden_dim, model.output_dim, model.hidden_layers, batch_norm=True)
        prototypes = Prototypes(
            model.output_dim,
            options.prototypes,
            bias=options.prototype_bias,
            normalize=options.prototype_norm,
            embedding_norm=options.embedding_norm,
            temperature=options.temperature,
            scale=options.prototype_scale,
        )
        self.head = nn.Sequential(OrderedDict(projection=projection, prototypes=prototypes))

    @classmethod
    def preset(cls, name: str, facts: DataFacts) -> Layer:
        if name == "shapes":
            return SHAPES_VALUES
        if name != "paper":
            raise UserError(f"carl has no preset {name!r}; use paper or shapes")
        few = 10 * facts.classes if facts.classes else 100 if facts.images < 20_000 else 300
        prototypes, start, end = PAPER_VALUES.get(facts.name, (max(few, 10), 4.0, 1.5))
        method = {"prototypes": prototypes, "prior_start": start, "prior_end": end}
        return {"method": method, "views": {"pipeline": "simclr"}}

    @classmethod
    def completed(cls, config: Config) -> Config:
        options = config.method
        assert isinstance(options, CarlOptions)
        epochs = config.train.epochs
        if options.prior_epochs is None:
            options = options.model_copy(update={"prior_epochs": min(100, max(1, epochs // 2))})
            return config.model_copy(update={"method": options})
        if options.prior_epochs > epochs:
            raise UserError(
                f"--prior-epochs {options.prior_epochs} is over the {epochs} epochs of the run, so lambda would never "
                f"reach --prior-end; use at most {epochs}"
            )
        return config

    def prior_weight(self, progress: float) -> float:
        """lambda_e at `progress` (Eq. 8)."""
        options = self.options
        epoch = progress * self.epochs
        if options.prior_by == "epoch":
            epoch = int(epoch + 1e-6)  # progress is a fraction of steps: guard against 2.9999999
        return lambda_schedule(
            epoch, options.prior_start, options.prior_end, options.prior_epochs or 0, options.prior_schedule
        )

    def scheduled(self, progress: float) -> dict[str, float]:
        return {"lambda": self.prior_weight(progress)}

    def represent(self, batch: Batch) -> Tensor:
        return forward_views(self._energies, batch.views, self.options.views_together)  # (V, B, K)

    def _energies(self, images: Tensor) -> Tensor:
        energies: Tensor = self.head(self.encoder(images))
        return energies

    def objective(self, represented: Tensor, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        log_p = log_assignments(represented)
        # With multi-crop each of the two large views is paired with every later view; with two views, one pair.
        pairs = [(a, b) for a in range(2) for b in range(a + 1, len(log_p))]
        terms = [consistency(log_p[a], log_p[b], self.options.targets) for a, b in pairs]
        consistent = sum(terms[1:], start=terms[0]) / len(terms)
        prior = uniform_prior(log_p, self.options.prior_mean)
        loss = consistent + self.prior_weight(progress) * prior
        return loss, {"loss": loss, "consistency": consistent, "kl": prior, **assignment_figures(log_p.detach())}

    def log_assignments(self, images: Tensor) -> Tensor:
        return log_assignments(self._energies(images))

    def prototype_vectors(self) -> Tensor:
        return self.head.get_parameter("prototypes.linear.weight").detach().cpu()
