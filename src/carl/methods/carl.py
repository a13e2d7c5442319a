"""CARL: consistent assignment of views to clusters (Silva and Ramirez Rivera, SAC 2022)."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import Tensor, nn

from carl.config import Config, Layer
from carl.data.batches.base import Batch
from carl.data.facts import DataFacts
from carl.errors import UserError
from carl.methods.base import Method, Metrics, assignment_figures, encoder_and_projection, forward_views
from carl.methods.carl_options import CarlOptions, carl_presets, with_prior
from carl.methods.losses import assignment_consistency, chance_agreement, consistency, log_assignments, uniform_prior
from carl.methods.paper import has_the_papers_size
from carl.methods.prior import STABLE, prior_threshold
from carl.models.heads import Prototypes
from carl.optim import lambda_schedule


class CARL(Method):
    """Two views of an image must choose the same of K prototypes, while all prototypes stay in use (Eq. 7)."""

    Options = CarlOptions

    def __init__(self, config: Config, facts: DataFacts) -> None:
        super().__init__()
        assert isinstance(config.method, CarlOptions)
        self.epochs = config.train.epochs
        self.options = options = with_prior(config.method, self.epochs)
        self.encoder, projection = encoder_and_projection(config, facts, batch_norm=True)
        prototypes = Prototypes(
            config.model.output_dim,
            options.prototypes,
            bias=options.prototype_bias,
            normalize=options.prototype_norm,
            embedding_norm=options.embedding_norm,
            temperature=options.temperature,
            scale=options.prototype_scale,
            parts=options.parts,
        )
        self.head = nn.Sequential(OrderedDict(projection=projection, prototypes=prototypes))

    @property
    def prototypes(self) -> Prototypes:
        found = self.head.get_submodule("prototypes")
        assert isinstance(found, Prototypes)
        return found

    @classmethod
    def presets(cls, facts: DataFacts) -> dict[str, Layer]:
        return carl_presets(facts)

    @classmethod
    def default_preset(cls, facts: DataFacts) -> str:
        """The paper's where the paper shows that it works: on its data, whole. Elsewhere `robust`."""
        if facts.name == "shapes":
            return "shapes"
        return "paper" if has_the_papers_size(facts) else "robust"

    @classmethod
    def completed(cls, config: Config) -> Config:
        options = config.method
        assert isinstance(options, CarlOptions)
        epochs = config.train.epochs
        if options.prior_epochs is not None and options.prior_epochs > epochs:
            raise UserError(
                f"--prior-epochs {options.prior_epochs} is over the {epochs} epochs of the run, so lambda would never "
                f"reach --prior-end; use at most {epochs}"
            )
        if options.beyond_chance and options.targets != "joint":
            raise UserError(
                f"method.beyond_chance has no meaning with method.targets = {options.targets!r}, where views are fixed "
                "targets; use joint"
            )
        if config.model.output_dim % options.parts:
            raise UserError(
                f"method.parts = {options.parts} does not divide the {config.model.output_dim} dimensions of the "
                f"embedding into equal parts; use {math.gcd(config.model.output_dim, options.parts)}, or another "
                "model.output_dim"
            )
        return config.model_copy(update={"method": with_prior(options, epochs)})

    @classmethod
    def remarks(cls, config: Config, facts: DataFacts) -> list[str]:
        options = config.method
        assert isinstance(options, CarlOptions)
        assert options.prior_start is not None
        if options.beyond_chance:  # where collapse gains nothing at any lambda
            return []
        least, lowest = (weight / options.prior_factor for weight in (STABLE, prior_threshold(options.prototypes)))
        if options.prior_start > least:
            return []
        return [
            f"warning: lambda starts at {options.prior_start:g}, and up to {least:g} few prototypes are left in use: "
            f"use a --prior-start above {least:g} (from "
            f"{math.ceil(10 * lowest) / 10:.1f} on, equal use of {options.prototypes} is the lowest loss)"
        ]

    def prior_weight(self, progress: float) -> float:
        """lambda_e at `progress` (Eq. 8)."""
        options = self.options
        assert options.prior_start is not None
        assert options.prior_end is not None
        epoch = progress * self.epochs
        if options.prior_by == "epoch":
            epoch = int(epoch + 1e-6)  # progress is a fraction of steps: guard against 2.9999999
        return lambda_schedule(
            epoch, options.prior_start, options.prior_end, options.prior_epochs or 0, options.prior_schedule
        )

    def logged(self, progress: float) -> dict[str, float]:
        return {"lambda": self.prior_weight(progress)}

    def represent(self, batch: Batch) -> Tensor:
        return forward_views(self._energies, batch.views, self.options.views_together)  # (V, B, G, K)

    def _energies(self, images: Tensor) -> Tensor:
        energies: Tensor = self.prototypes.by_part(self.embed(images))
        return energies

    def objective(self, represented: Tensor, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        by_part = log_assignments(represented)
        # With multi-crop each of the two large views is paired with every later view; with two views, one pair.
        pairs = [(a, b) for a in range(2) for b in range(a + 1, len(by_part))]
        terms = [consistency(by_part[a], by_part[b], self.options.targets) for a, b in pairs]
        consistent = sum(terms[1:], start=terms[0]) / len(terms)
        prior = uniform_prior(by_part, self.options.prior_mean)
        loss = consistent + self.prior_weight(progress) * prior
        figures = {"consistency": consistent, "kl": prior}
        whole = by_part[:, :, 0].detach()  # (V, B, K): what health and users see
        if self.options.parts > 1:
            whole = log_assignments(represented.detach().sum(dim=2))
            figures = {"consistency": assignment_consistency(whole[0], whole[1]), "kl": uniform_prior(whole)}
            figures |= {"consistency_in_parts": consistent, "kl_in_parts": prior}
        if self.options.beyond_chance:
            figures["chance"] = chance_agreement(by_part)
            loss = loss + figures["chance"]
        return loss, {"loss": loss, **figures, **assignment_figures(whole)}

    def embed(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.head.get_submodule("projection")(self.encoder(images))
        return embeddings

    def log_assignments(self, images: Tensor) -> Tensor:
        return log_assignments(self.head(self.encoder(images)))

    def prototype_vectors(self) -> Tensor:
        return self.head.get_parameter("prototypes.linear.weight").detach().cpu()
