"""What every method is: an encoder, a head, and a loss computed by calling it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from carl.config import Config, Layer, MethodOptions
from carl.data.batches import Batch

Metrics = dict[str, Tensor]
EmbedFn = Callable[[], Tensor]  # embeddings of the whole training set, in the order of the data


@dataclass(frozen=True)
class DataFacts:
    """What a method and its presets may know of the data."""

    name: str  # a known name ("cifar10") where the source is recognised, else what the user gave
    images: int
    channels: int
    image_size: int
    classes: int  # 0 without labels


class Method(nn.Module):
    """A way to learn an encoder. Calling it computes the loss; subclasses are final.

    The loss is computed in two halves, so that a batch can go through the encoder in parts
    (`train.accumulate`) while the objective still sees all of it.
    """

    Options: ClassVar[type[MethodOptions]]
    views_needed: ClassVar[int] = 2
    encoder: nn.Module
    head: nn.Module  # all else that is learned: saved as head.safetensors

    @classmethod
    def preset(cls, name: str, facts: DataFacts) -> Layer:
        """The values that a preset gives this method on this data, as sections of the configuration."""
        raise NotImplementedError

    @classmethod
    def default_preset(cls, facts: DataFacts) -> str:
        """The preset when the user names none: the paper's, but on the built-in data values for a run of minutes."""
        return "shapes" if facts.name == "shapes" else "paper"

    @classmethod
    def completed(cls, config: Config) -> Config:
        """The configuration with the method's automatic values filled in and its rules checked."""
        return config

    def represent(self, batch: Batch) -> Tensor:
        """What the objective needs of each image: (V, B, ...)."""
        raise NotImplementedError

    def objective(self, represented: Tensor, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        """The loss over the whole batch at `progress` in [0, 1] of the training, and figures to log."""
        raise NotImplementedError

    def forward(self, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        return self.objective(self.represent(batch), batch, progress)

    def scheduled(self, progress: float) -> dict[str, float]:
        """Values of the method's own schedules, to log."""
        return {}

    def log_assignments(self, images: Tensor) -> Tensor | None:
        """Log-probabilities over the prototypes (B, K), for methods that have prototypes."""
        return None

    def prototype_vectors(self) -> Tensor | None:
        """The prototypes (K, D), for methods that have them."""
        return None

    def before_epoch(self, epoch: int, embed_all: EmbedFn) -> None:
        """Called before each epoch."""

    def after_backward(self, progress: float) -> None:
        """Called between the backward pass and the optimiser's step."""

    def after_step(self, progress: float) -> None:
        """Called after the optimiser's step."""


def forward_views(module: Callable[[Tensor], Tensor], views: Sequence[Tensor], together: bool) -> Tensor:
    """Outputs of all views, (V, B, ...); views of one size share a forward pass when `together`.

    A shared pass normalises over the images of all those views, separate passes over each view on its own.
    """
    if not together:
        return torch.stack([module(view) for view in views])
    outputs: list[Tensor] = []
    while len(outputs) < len(views):
        first = views[len(outputs)]
        group = [view for view in views[len(outputs) :] if view.shape == first.shape]
        same = views[len(outputs) : len(outputs) + len(group)]
        assert all(view.shape == first.shape for view in same), "views of one size must stand together"
        outputs.extend(module(torch.cat(list(same))).chunk(len(same)))
    return torch.stack(outputs)


def assignment_figures(log_p: Tensor) -> Metrics:
    """Cheap figures of the batch of this process: no host sync, so they cost nothing until they are read."""
    choices = log_p.argmax(dim=2)  # (V, B)
    used = choices.new_zeros(log_p.shape[2]).scatter_(0, choices.flatten(), 1).sum()
    entropy = -(log_p.exp() * log_p).sum(dim=2).mean()
    return {"used": used, "entropy": entropy, "agreement": (choices[0] == choices[1]).float().mean()}
