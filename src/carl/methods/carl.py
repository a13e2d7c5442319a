"""CARL: consistent assignment of views to clusters (Silva and Ramirez Rivera, SAC 2022).

Its options and presets, its loss (`carl.CARLLoss`, for any training loop), and the method that trains with that loss.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from carl.config import Config, Layer, MethodOptions, merge
from carl.data.batches.base import Batch
from carl.data.facts import DataFacts
from carl.defaults import ADAPT, EPOCHS, MOST_PRIOR_EPOCHS
from carl.errors import UserError
from carl.methods.base import (
    FORWARD,
    SHAPES_BUDGET,
    Method,
    Metrics,
    adapt_preset,
    assignment_figures,
    encoder_and_projection,
    forward_views,
    learned_prototypes,
    robust_preset,
    through,
    view_passes,
)
from carl.methods.health import Finding, PrototypeHealth, Remedies, examine
from carl.methods.losses import (
    Against,
    Negatives,
    PriorMean,
    Targets,
    assignment_consistency,
    chance_agreement,
    consistency,
    consistency_with_mean,
    log_assignments,
    mean_of_others,
    uniform_prior,
)
from carl.methods.paper import PAPER_TARGETS, has_the_papers_budget, paper_values
from carl.methods.prior import STABLE, barrier, prior_threshold, weight_that_holds
from carl.models.heads import EmbeddingNorm, Prototypes
from carl.models.momentum import average_into, distance, momentum_copy
from carl.optim import cosine, lambda_schedule

# Defaults of the loss that the paper leaves open, for the method and for `CARLLoss` alike; with PAPER_TARGETS.
PRIOR_MEAN: PriorMean = "all"  # one mean over both views, as in CARP
BEYOND_CHANCE = False  # Eq. 4 has no such term
AGAINST: Against = "pairs"  # Eq. 4 is of two views
NEGATIVES: Negatives = "views"


class CarlOptions(MethodOptions):
    """Options of CARL. Where the paper is silent, the default and its source are named."""

    name: Literal["carl"] = "carl"
    prototypes: int = Field(
        100, ge=2, description="Number of prototypes, K: about ten per class you expect (paper, section 4.2)."
    )
    prior_start: float | None = Field(
        None,
        ge=0,
        description="Weight of the prior at the start, b of Eq. 8. Unset: the lowest value at which equal use of all "
        "prototypes beats giving every image the same assignment: 2.1 for 100 prototypes, 4.2 for 1,000. With joint "
        "targets it is twice that; with beyond_chance it is 1. At 1 or less (2 with joint targets) few prototypes stay "
        "in use, unless beyond_chance is on.",
    )
    prior_end: float | None = Field(
        None,
        ge=0,
        description="Weight of the prior once it has fallen, a of Eq. 8. Unset: half of prior_start, but at least 1 "
        "(2 with joint targets), or prior_start itself if that is less.",
    )
    prior_epochs: int | None = Field(
        None,
        ge=0,
        description=f"Epochs over which the weight falls, E of Eq. 8. Unset: half of all, at most {MOST_PRIOR_EPOCHS}.",
    )
    prior_schedule: Literal["linear", "cosine", "exponential", "constant"] = Field(
        "linear", description="How the weight falls. The paper uses `linear` and says that others would work too."
    )
    prior_by: Literal["epoch", "step"] = Field(
        "epoch", description="Whether the weight changes once per epoch, as in Eq. 8, or at every step."
    )
    prior_mean: PriorMean = Field(
        PRIOR_MEAN,
        description="Mean assignment of Eq. 6: one mean over `all` views, as in CARP, or one for `each` view.",
    )
    targets: Targets = Field(
        PAPER_TARGETS,
        description="How gradients flow in Eq. 4. `joint`: through both views. `sum`: each view in turn is a fixed "
        "target for the other, which gives the same gradient. `average`: half of that, so the prior counts double.",
    )
    views_together: bool = Field(
        True,
        description="Both views in one forward pass, as in SwAV and CARP. Off: each view has its own batch statistics.",
    )
    prototype_bias: bool = Field(False, description="Give each prototype a bias. Neither Eq. 2 nor CARP has one.")
    prototype_norm: bool = Field(
        False, description="Prototypes of unit length, as in CARP. Eq. 2 has plain inner products."
    )
    prototype_scale: float | None = Field(
        None,
        gt=0,
        description="Standard deviation of the initial prototypes. Unset: torch's default for a linear layer.",
    )
    embedding_norm: EmbeddingNorm = Field(
        "none",
        description="What is done to embeddings before they meet the prototypes: `none` (Eq. 2), `l2` (unit length), "
        "`batch` (batch norm without affine parameters) or `batch-l2` (both).",
    )
    temperature: float = Field(
        1.0,
        gt=0,
        description="Divides the energies. A lower value makes assignments more certain. Eq. 3 has none: that is 1.",
    )
    parts: int = Field(
        1,
        ge=1,
        description="Cut the embedding into this many equal parts. The views must choose the same prototype in each. "
        "With more parts, the same prototypes tell more images apart. Eq. 4 has one part.",
    )
    part_size: int | None = Field(
        None,
        ge=1,
        description="Dimensions of each part. Use it instead of `parts` when the size of the embedding depends on the "
        "encoder (`model.head = none`).",
    )
    cosine_temperature: float | None = Field(
        None,
        gt=0,
        description="Use it instead of `temperature` to make assignments as certain as those of SimCLR at this "
        "temperature, whatever the size of the embedding. Needs prototypes and embeddings of unit length.",
    )
    beyond_chance: bool = Field(
        BEYOND_CHANCE,
        description="Count agreement between views of one image relative to agreement with other images. This makes "
        "the method contrastive, with the other images of the batch as negatives: collapse gains nothing, whatever the "
        "weight of the prior. Not in the paper. Needs joint targets.",
    )
    against: Against = Field(
        AGAINST,
        description="With more than two views: `pairs` compares the first two with each other and with all later ones. "
        "`mean` compares each view with the mean assignment of the image's other large views, in each part. With two "
        "views both are the same.",
    )
    negatives: Negatives = Field(
        NEGATIVES,
        description="What beyond_chance compares with: all `views` of other images, or the `means` of each image's "
        "large views. With V views, comparing with the means takes 1/V of the work.",
    )
    teacher: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Momentum of a slow copy of the network that gives the targets and, with beyond_chance, the "
        "negatives. It rises to 1 along a cosine, as in BYOL. With averaged targets the loss is the mean over the "
        "views, otherwise twice that. 0: no copy; the views are each other's targets.",
    )
    frozen_prototypes: bool = Field(
        False, description="Keep the prototypes at their random start, so that only the encoder and the head learn."
    )

    @property
    def on_the_sphere(self) -> bool:
        """Whether embeddings and prototypes have unit length."""
        return self.prototype_norm and self.embedding_norm in ("l2", "batch-l2")

    def parts_of(self, dim: int) -> int:
        """Into how many parts an embedding of `dim` dimensions is cut."""
        if dim % (self.part_size or self.parts):
            given = f"part_size = {self.part_size}" if self.part_size else f"parts = {self.parts}"
            raise UserError(
                f"method.{given} does not divide the {dim} dimensions of the embedding into equal parts; use "
                f"{math.gcd(dim, self.part_size or self.parts)}, or another model.output_dim"
            )
        return dim // self.part_size if self.part_size else self.parts

    def temperature_of(self, dim: int) -> float:
        """What divides the energies of embeddings of `dim` dimensions.

        The inner product of two random unit vectors has a variance of 1 / dim. Divided by this temperature it has that
        of SimCLR's exponent, 1 / `cosine_temperature`.
        """
        return self.temperature if self.cosine_temperature is None else math.sqrt(self.cosine_temperature / dim)

    @property
    def prior_factor(self) -> float:
        """How much lambda counts beside the consistency term: double with `average`, which halves that gradient."""
        return 2.0 if self.targets == "average" else 1.0


class PriorWeight(NamedTuple):
    """lambda of Eq. 8: it falls from `start` to `end` over the first `epochs`."""

    start: float
    end: float
    epochs: int

    @classmethod
    def of(cls, options: CarlOptions, run_epochs: int) -> PriorWeight:
        """The weights in the options, with automatic values where they are unset."""
        start, end, epochs = options.prior_start, options.prior_end, options.prior_epochs
        factor = options.prior_factor
        if start is None and options.beyond_chance:
            start = 1.0
        elif start is None:
            start = math.ceil(100 * prior_threshold(options.prototypes) / factor) / 100
        if end is None:
            end = min(start, max(STABLE / factor, start / 2))
        if epochs is None:
            epochs = min(MOST_PRIOR_EPOCHS, max(1, run_epochs // 2))
        return cls(start, end, epochs)


# Our own, for a run of minutes: embeddings of equal variance and logits of about unit size learn from the first epoch.
SHAPES_VALUES: Layer = {
    "method": {
        "prototypes": 100,
        "prior_start": 4.0,
        "prior_end": 2.0,
        "targets": "joint",
        "embedding_norm": "batch",
        "prototype_scale": 0.088,  # 1 / sqrt(128)
    },
    "optim": {"name": "sgd", "lr": 0.06},
}

# CARL's own values in `robust` (docs/robustness.md). On the sphere, K prototypes approximate the cosine better in fewer
# dimensions: hence many parts. Lambda is unset, which is 1 with `beyond_chance`. The weight decay is SimCLR's.
ROBUST: Layer = {
    "method": {
        "prototypes": 128,
        "parts": 32,
        "targets": "joint",
        "beyond_chance": True,
        "embedding_norm": "batch-l2",
        "prototype_norm": True,
        "prototype_scale": 0.25,  # for unit-norm prototypes it only sets how slowly they turn
        "temperature": 0.03,  # as SimCLR's 0.115 = 128 * 0.03^2: energies have a variance of 1 / 0.115
    },
    "optim": {"weight_decay": 1e-6},
}


# As in `robust`, with parts of the same size and assignments as sharp as SimCLR's in its own `adapt`. The rate gained
# more than 1.2e-4 and 3e-5 on held-out training images (results/adapt/README.md).
ADAPTED: Layer = {
    "method": {
        **{key: value for key, value in ROBUST["method"].items() if key not in ("parts", "temperature")},
        "part_size": 4,
        "cosine_temperature": 0.05,
    },
    "optim": {"lr": 3e-4},
}


class LossTerms(NamedTuple):
    """What CARL's loss is made of."""

    consistency: Tensor  # Eq. 4, mean over the pairs of views
    prior: Tensor  # KL to uniform (Eq. 5, 6), before lambda weighs it
    chance: Tensor | None  # agreement with views of other images; None without `beyond_chance`

    def weighted(self, weight: float) -> Tensor:
        """The loss with this lambda (Eq. 7)."""
        loss = self.consistency + weight * self.prior
        return loss if self.chance is None else loss + self.chance


class CARLLoss(nn.Module):
    """CARL's loss (Eq. 7), called with two views: consistency of their assignments plus lambda times KL to uniform.

    The logits come from `Prototypes`: (B, K) for each view of B images, or (B, G, K) from `Prototypes.by_part` when the
    embedding is split into G parts. `weight` is lambda, for example from `lambda_schedule`. With
    `targets="average"` each view in turn is a fixed target for the other, and lambda weighs twice as much as with
    `joint`. With `beyond_chance` agreement counts relative to agreement with views of other images. Under
    DistributedDataParallel the mean assignment and the other images are those of the batch of all processes.

    `terms` takes more views. There `against` says what each is compared with, and `negatives` what `beyond_chance`
    takes from other images.
    """

    def __init__(
        self,
        targets: Targets = PAPER_TARGETS,
        prior_mean: PriorMean = PRIOR_MEAN,
        beyond_chance: bool = BEYOND_CHANCE,
        against: Against = AGAINST,
        negatives: Negatives = NEGATIVES,
    ) -> None:
        super().__init__()
        check_targets(targets, beyond_chance)
        self.targets: Targets = targets
        self.prior_mean: PriorMean = prior_mean
        self.beyond_chance = beyond_chance
        self.against: Against = against
        self.negatives: Negatives = negatives

    def forward(self, logits: Tensor, other_logits: Tensor, weight: float) -> Tensor:
        return self.terms(log_assignments(torch.stack([logits, other_logits]))).weighted(weight)

    def terms(self, log_p: Tensor, large: int | None = None, log_taught: Tensor | None = None) -> LossTerms:
        """The terms for two or more views, given as log-assignments: (V, B, K) or (V, B, G, K).

        The first `large` views are the ones that others are compared with, all if None. `log_taught` are a teacher's
        assignments of these, which take their place as targets.
        """
        agreement = self._agreement(log_p, log_p[:large] if log_taught is None else log_taught, log_taught is not None)
        chance = self._chance(log_p, large, log_taught) if self.beyond_chance else None
        return LossTerms(agreement, uniform_prior(log_p, self.prior_mean), chance)

    def _agreement(self, log_p: Tensor, log_large: Tensor, taught: bool) -> Tensor:
        """Eq. 4 of each view and of others that are large, whose assignments are the teacher's if there is one.

        `pairs`: each of the first two views is paired with every later one. With two views that is one pair, with
        multi-crop each large view is paired with the other and with all small ones.
        """
        if self.against == "mean":
            targets = self.targets if self.targets == "average" or not taught else "sum"
            return consistency_with_mean(log_p, mean_of_others(log_large, len(log_p)), targets)
        if taught:  # as in SwAV: the first two views are the targets of all others
            pairs = [(a, b) for a in range(2) for b in range(len(log_p)) if a != b]
            found = [self._taught_factor * assignment_consistency(log_p[b], log_large[a]) for a, b in pairs]
        else:
            pairs = [(a, b) for a in range(2) for b in range(a + 1, len(log_p))]
            found = [consistency(log_p[a], log_p[b], self.targets) for a, b in pairs]
        return sum(found[1:], start=found[0]) / len(found)

    def _chance(self, log_p: Tensor, large: int | None, log_taught: Tensor | None) -> Tensor:
        """Agreement with other images, by part."""
        log_p = log_p if log_p.ndim == 4 else log_p[:, :, None]
        if log_taught is not None and log_taught.ndim == 3:
            log_taught = log_taught[:, :, None]
        others = log_taught
        if self.negatives == "means":
            each = log_p[:large] if log_taught is None else log_taught
            others = each.logsumexp(dim=0, keepdim=True) - math.log(len(each))
        found = chance_agreement(log_p, others)
        return found if log_taught is None else self._taught_factor * found

    @property
    def _taught_factor(self) -> int:
        """Fixed targets have half the gradient of joint ones, unless both directions are added."""
        return 1 if self.targets == "average" else 2


def check_targets(targets: Targets, beyond_chance: bool, section: str = "") -> None:
    """Refuse `beyond_chance` with fixed targets: agreement relative to chance is only defined for joint ones."""
    if beyond_chance and targets != "joint":
        raise UserError(
            f"{section}beyond_chance has no meaning with {section}targets = {targets!r}, where views are fixed "
            "targets; use joint"
        )


class CARL(Method):
    """Two views of an image must choose the same of K prototypes, while all prototypes stay in use (Eq. 7)."""

    Options = CarlOptions
    most_views = None

    def __init__(self, config: Config, facts: DataFacts) -> None:
        super().__init__()
        self.options = options = CarlOptions.of(config)
        self.epochs = config.train.epochs
        self.prior = PriorWeight.of(options, self.epochs)
        self.criterion = CARLLoss(
            options.targets, options.prior_mean, options.beyond_chance, options.against, options.negatives
        )
        self.encoder, projection = encoder_and_projection(config, facts, batch_norm=True)
        prototypes = Prototypes(
            projection.output_dim,
            options.prototypes,
            bias=options.prototype_bias,
            normalize=options.prototype_norm,
            embedding_norm=options.embedding_norm,
            temperature=options.temperature_of(projection.output_dim),
            scale=options.prototype_scale,
            parts=options.parts_of(projection.output_dim),
        )
        prototypes.requires_grad_(not options.frozen_prototypes)
        self.head = nn.Sequential(OrderedDict(projection=projection, prototypes=prototypes))
        network = nn.Sequential(OrderedDict(encoder=self.encoder, head=self.head))
        self.teacher = momentum_copy(network) if options.teacher else None

    @property
    def prototypes(self) -> Prototypes:
        found = self.head.get_submodule("prototypes")
        assert isinstance(found, Prototypes)
        return found

    @classmethod
    def presets(cls, facts: DataFacts) -> dict[str, Layer]:
        """`paper`: the paper's values. `robust`: for less data and time. `shapes`: for the built-in data.

        `adapt`: for an encoder that exists.
        """
        values = paper_values(facts)
        method = {
            "prototypes": values.prototypes,
            "prior_start": values.prior_start,
            "prior_end": values.prior_end,
            "targets": PAPER_TARGETS,
        }
        return {
            "paper": {"method": method, "views": {"pipeline": "simclr"}},
            "robust": robust_preset(facts, ROBUST),
            "shapes": merge([SHAPES_BUDGET, SHAPES_VALUES]),
            ADAPT: adapt_preset(facts, ADAPTED),
        }

    @classmethod
    def default_preset(cls, facts: DataFacts, epochs: int = EPOCHS) -> str:
        """`paper` where a run is as long as the paper's; `robust` for less data or time, where it learns far more."""
        if facts.name == "shapes":
            return "shapes"
        return "paper" if has_the_papers_budget(facts, epochs) else "robust"

    @classmethod
    def completed(cls, config: Config) -> Config:
        options, epochs = CarlOptions.of(config), config.train.epochs
        if options.prior_epochs is not None and options.prior_epochs > epochs:
            raise UserError(
                f"--prior-epochs {options.prior_epochs} is over the {epochs} epochs of the run, so lambda would never "
                f"reach --prior-end; use at most {epochs}"
            )
        check_targets(options.targets, options.beyond_chance, "method.")
        if config.model.head != "none":  # otherwise the encoder decides, and is not there yet
            options.parts_of(config.model.output_dim)
        if options.cosine_temperature is not None and not options.on_the_sphere:
            raise UserError(
                f"method.cosine_temperature = {options.cosine_temperature:g} is for vectors of unit length; set "
                "method.prototype_norm=true and method.embedding_norm=l2, or use method.temperature"
            )
        prior = PriorWeight.of(options, epochs)
        filled = {"prior_start": prior.start, "prior_end": prior.end, "prior_epochs": prior.epochs}
        return config.model_copy(update={"method": options.model_copy(update=filled)})

    @classmethod
    def remarks(cls, config: Config, facts: DataFacts) -> list[str]:
        options = CarlOptions.of(config)
        start = PriorWeight.of(options, config.train.epochs).start
        least, lowest = (weight / options.prior_factor for weight in (STABLE, prior_threshold(options.prototypes)))
        if start > least or options.beyond_chance:  # relative to chance, collapse gains nothing at any lambda
            return []
        return [
            f"warning: lambda starts at {start:g}, and up to {least:g} few prototypes are left in use: "
            f"use a --prior-start above {least:g} (from "
            f"{math.ceil(10 * lowest) / 10:.1f} on, equal use of {options.prototypes} is the lowest loss)"
        ]

    @classmethod
    def prototype_count(cls, config: Config) -> int:
        return CarlOptions.of(config).prototypes

    @classmethod
    def loss_variant(cls, config: Config) -> str:
        return CarlOptions.of(config).targets

    @classmethod
    def compared_pairs(cls, config: Config) -> int | None:
        """One pair per image: its two views. More views, and agreement relative to chance, compare more."""
        more = config.views.count is not None or config.views.small_count is not None
        return None if more or CarlOptions.of(config).beyond_chance else config.train.batch_size

    @classmethod
    def passes(cls, config: Config, sides: Sequence[int]) -> float:
        large = [side for side in sides if side == sides[0]]
        taught = FORWARD * view_passes(large) if CarlOptions.of(config).teacher else 0.0
        return super().passes(config, sides) + taught

    def prior_weight(self, progress: float) -> float:
        """lambda_e at `progress` (Eq. 8)."""
        epoch = progress * self.epochs
        if self.options.prior_by == "epoch":
            epoch = int(epoch + 1e-6)  # progress is a fraction of steps: guard against 2.9999999
        return lambda_schedule(epoch, *self.prior, self.options.prior_schedule)

    def logged(self, progress: float) -> dict[str, float]:
        figures = {"lambda": self.prior_weight(progress)}
        if self.teacher is None:
            return figures
        behind = float(distance(self.teacher.get_submodule("encoder"), self.encoder))
        return {**figures, "momentum": self.momentum(progress), "target_distance": behind}

    def momentum(self, progress: float) -> float:
        """How slowly the teacher follows (BYOL, section 3.3)."""
        return cosine(progress, self.options.teacher, 1.0)

    def after_step(self, progress: float) -> None:
        if self.teacher is not None:
            momentum = self.momentum(progress)
            average_into(self.teacher.get_submodule("encoder"), self.encoder, momentum)
            average_into(self.teacher.get_submodule("head"), self.head, momentum)

    def represent(self, batch: Batch) -> Tensor:
        """Energies of all views, then the teacher's of the large ones if there is one: (V, B, G, K)."""
        together = self.options.views_together
        energies = forward_views(self._energies, batch.views, together)
        if self.teacher is None:
            return energies
        with torch.no_grad():
            taught = forward_views(self._taught_energies, batch.views[: large_views(batch)], together)
        return torch.cat([energies, taught])

    def _energies(self, images: Tensor) -> Tensor:
        return self.objective_input(self.embed(images))

    def _taught_energies(self, images: Tensor) -> Tensor:
        assert self.teacher is not None
        prototypes = self.teacher.get_submodule("head.prototypes")
        assert isinstance(prototypes, Prototypes)
        features = self.teacher.get_submodule("encoder")(images)
        return prototypes.by_part(self.teacher.get_submodule("head.projection")(features))

    def objective_input(self, embeddings: Tensor) -> Tensor:
        """Energies of each part: (N, G, K)."""
        energies: Tensor = self.prototypes.by_part(embeddings)
        return energies

    def choosing_parts(self) -> list[nn.Module]:
        return [self.prototypes]

    def objective(self, represented: Tensor, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        large, views = large_views(batch), len(batch.views)
        taught = None if self.teacher is None else log_assignments(represented[views:].detach())
        represented = represented[:views]
        by_part = log_assignments(represented)
        terms = self.criterion.terms(by_part, large, taught)
        loss = terms.weighted(self.prior_weight(progress))
        figures = {"consistency": terms.consistency, "kl": terms.prior}
        whole = by_part[:, :, 0].detach()  # (V, B, K): what health and users see
        if self.prototypes.parts > 1:
            whole = log_assignments(represented.detach().sum(dim=2))
            figures = {"consistency": assignment_consistency(whole[0], whole[1]), "kl": uniform_prior(whole)}
            figures |= {"consistency_in_parts": terms.consistency, "kl_in_parts": terms.prior}
        if terms.chance is not None:
            figures["chance"] = terms.chance
        return loss, {"loss": loss, **figures, **assignment_figures(whole)}

    def embed(self, images: Tensor) -> Tensor:
        return through(images, self.encoder, self.head.get_submodule("projection"))

    def log_assignments(self, images: Tensor) -> Tensor:
        return log_assignments(self.head(self.encoder(images)))

    def prototype_vectors(self) -> Tensor:
        return learned_prototypes(self.head)

    def findings(self, health: PrototypeHealth | None, spread: float, epochs_done: int) -> list[Finding]:
        options = self.options
        if health is None or options.beyond_chance:  # then lambda is not what keeps the prototypes in use
            return super().findings(health, spread, epochs_done)
        if epochs_done > 0:
            return examine(health, epochs_done, lambda_remedies(health.prototypes, self.prior.start, options))
        # With several parts the prior holds each part on its own, and the health seen here is that of their sum.
        return [] if self.prototypes.parts > 1 else examine_start(health, self.prior.start, options.prior_factor)


def large_views(batch: Batch) -> int:
    """How many views are as large as the first; they stand before the small ones."""
    return sum(view.shape == batch.views[0].shape for view in batch.views)


def lambda_remedies(prototypes: int, start: float, options: CarlOptions) -> Remedies:
    """Remedies for runs in which lambda, which begins at `start`, keeps the prototypes in use."""
    kept = f"now {start:g}, but keep it above {STABLE / options.prior_factor:g}"
    return Remedies(
        few=f"raise --prior-start (now {start:g}) or lower the learning rate",
        unused="raise --prior-end, spread the decay with --prior-epochs, or ask for fewer prototypes "
        f"(now {prototypes})",
        same=f"train longer, raise the learning rate, or lower --prior-start ({kept})",
        flat_loss=f"ln K = {math.log(prototypes):.2f}",
    )


def examine_start(health: PrototypeHealth, start: float, factor: float = 1.0) -> list[Finding]:
    """A finding if the untrained model favours one prototype so much that lambda cannot bring it back to equal use.

    `start` is lambda at the start; `factor` is how much it counts beside the consistency term.
    """
    if factor * start <= STABLE:  # no start is held, which `remarks` says
        return []
    needed = weight_that_holds(health.prototypes, health.heaviest)
    if factor * start >= needed:
        return []
    text = (
        f"the untrained model gives one prototype {health.heaviest:.1%} of the images, and with lambda {start:g} "
        f"over {barrier(health.prototypes, factor * start):.1%} leads to one heavy prototype"
    )
    enough = math.ceil(10 * needed / factor) / 10
    remedy = f"use --prior-start {enough:.1f} or more for {health.prototypes} prototypes, or a smaller prototype_scale"
    return [Finding("peaked start", False, text, remedy)]
