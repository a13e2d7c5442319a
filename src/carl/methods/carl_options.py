"""What CARL can be told, and the named sets of values for it."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from carl.config import Layer, MethodOptions, merge
from carl.data.facts import DataFacts
from carl.methods.base import SHAPES_BUDGET
from carl.methods.losses import PriorMean, Targets
from carl.methods.paper import PAPER_TARGETS, paper_values
from carl.methods.prior import STABLE, prior_threshold
from carl.models.heads import EmbeddingNorm


class CarlOptions(MethodOptions):
    """Options of CARL. Where the paper is silent, the default and its source are named."""

    name: Literal["carl"] = "carl"
    prototypes: int = Field(100, ge=2, description="K. About ten times the classes you expect (paper, section 4.2).")
    prior_start: float | None = Field(
        None,
        ge=0,
        description="b of Eq. 8; up to 2 the uniform start is not stable. Unset is the least with which "
        "equal use is the lowest of all constant assignments: 4.1 for 100, 8.5 for 1,000; with beyond_chance it is 1.",
    )
    prior_end: float | None = Field(
        None, ge=0, description="a of Eq. 8. Unset is half of prior_start, but not below 2 if that is above."
    )
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
    targets: Targets = Field("joint", description="How gradients flow in Eq. 4. With `average` lambda weighs double.")
    views_together: bool = Field(
        True, description="Both views in one forward pass (SwAV, CARP); off, each has batch statistics of its own."
    )
    prototype_bias: bool = Field(False, description="Eq. 2 has none; CARP has none.")
    prototype_norm: bool = Field(False, description="Unit-norm prototypes, as CARP; Eq. 2 has plain inner products.")
    prototype_scale: float | None = Field(
        None, gt=0, description="Std of the prototypes at the start; unset is torch's default for a linear layer."
    )
    embedding_norm: EmbeddingNorm = Field(
        "none",
        description="none (Eq. 2), l2 (unit length), batch (batch norm without affine parameters), or batch-l2 (both).",
    )
    temperature: float = Field(1.0, gt=0, description="Divides the energies; Eq. 3 has none.")
    parts: int = Field(
        1,
        ge=1,
        description="Equal parts of the dimensions, in each of which the views must choose the same prototype; Eq. 4 "
        "has one. Few prototypes tell images apart better in many parts.",
    )
    beyond_chance: bool = Field(
        False,
        description="Whether agreement counts relative to that with views of other images; collapse then gains nothing "
        "at any lambda, which is 1 if unset. Eq. 4 has no such term.",
    )

    @property
    def prior_factor(self) -> float:
        """What lambda weighs against the other term: `average` halves the gradient of that."""
        return 2.0 if self.targets == "average" else 1.0


# Of ours, for a run of minutes: embeddings of equal variance and logits of about unit size learn from the first epoch.
SHAPES_VALUES: Layer = {
    "method": {
        "prototypes": 100,
        "prior_start": 4.0,
        "prior_end": 2.0,
        "embedding_norm": "batch",
        "prototype_scale": 0.088,  # 1 / sqrt(128)
    },
    "optim": {"name": "sgd", "lr": 0.06},
}


# Of ours, for small data, small batches and short runs (docs/robustness.md). On the sphere K prototypes stand for the
# cosine the better the fewer dimensions they tell apart: hence many parts. Lambda is unset: 1, relative to chance.
ROBUST_VALUES: Layer = {
    "method": {
        "prototypes": 128,
        "parts": 32,
        "beyond_chance": True,
        "embedding_norm": "batch-l2",
        "prototype_norm": True,
        "prototype_scale": 0.25,  # of unit-norm prototypes only how slowly they turn
        "temperature": 0.03,  # as SimCLR's 0.115 = 128 * 0.03^2: energies have a variance of 1 / 0.115
    },
    "optim": {"name": "sgd", "lr": 0.06, "scale_lr": True, "weight_decay": 1e-6},
    "views": {"pipeline": "simclr", "crop_min": 0.2},
}


def with_prior(options: CarlOptions, epochs: int) -> CarlOptions:
    """With what is unset of the prior's schedule filled in."""
    start, factor = options.prior_start, options.prior_factor
    if start is None and options.beyond_chance:
        start = 1.0
    elif start is None:
        start = math.ceil(100 * prior_threshold(options.prototypes) / factor) / 100
    end = min(start, max(STABLE / factor, start / 2)) if options.prior_end is None else options.prior_end
    fall = min(100, max(1, epochs // 2)) if options.prior_epochs is None else options.prior_epochs
    return options.model_copy(update={"prior_start": start, "prior_end": end, "prior_epochs": fall})


def carl_presets(facts: DataFacts) -> dict[str, Layer]:
    """`paper`: the paper's for this data. `robust`: for less data and time. `shapes`: for the built-in data."""
    values = paper_values(facts)
    method = {
        "prototypes": values.prototypes,
        "prior_start": values.prior_start,
        "prior_end": values.prior_end,
        "targets": PAPER_TARGETS,
    }
    return {
        "paper": {"method": method, "views": {"pipeline": "simclr"}},
        "robust": ROBUST_VALUES,
        "shapes": merge([SHAPES_BUDGET, SHAPES_VALUES]),
    }
