"""What every method is: an encoder, a head, and a loss computed by calling it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from carl import defaults
from carl.config import Config, Layer, MethodOptions, merge
from carl.data.batches.base import Batch
from carl.data.facts import DataFacts
from carl.defaults import ADAPT
from carl.errors import UserError
from carl.methods.health import Finding, PrototypeHealth, examine, examine_spread, usual_remedies
from carl.models.encoders import build_learning_encoder, feature_size
from carl.models.heads import NoProjection, ProjectionHead

Metrics = dict[str, Tensor]
FORWARD = 1 / 3  # of a pass forward and backward: the gradients of weights and of maps cost as much again each
# Takes a function of images; returns rows of the training set and the function's values there, on the training device.
# Each row is in the share of exactly one process.
EmbedFn = Callable[[Callable[[Tensor], Tensor]], tuple[Tensor, Tensor]]

# The built-in data are not in the paper. One budget for all methods, minutes on a CPU; views keep most of the
# shape, and do not change the hue.
SHAPES_BUDGET: Layer = {
    "data": {"image_size": 24},
    "views": {"pipeline": "simclr", "crop_min": 0.6, "hue": 0.5, "grey": 0.5},
    "train": {"epochs": defaults.SHAPES_EPOCHS, "batch_size": defaults.SHAPES_BATCH_SIZE},
}

# The preset `robust`, as far as all methods share it: views, head and learning rate. Our own, for small data, small
# batches and short runs (docs/robustness.md). The rate was the best of 0.03, 0.06 and 0.12 for SimCLR on held-out
# training images, and is what CARL had before; crops of at least 20% are those of MoCo's and SimSiam's views.
SHARED: Layer = {
    "views": {"pipeline": "simclr", "crop_min": 0.2},
    "model": {"head_batch_norm": True},  # as in SimCLR's, BYOL's, SwAV's and SimSiam's code
    "optim": {"name": "sgd", "lr": 0.06, "lr_end": 0.0006, "scale_lr": True},
}


# The preset `adapt`, for runs that start from an encoder. Ours, chosen on held-out training images of flowers and of
# CIFAR-10 (results/adapt/README.md): a low rate, milder views, and the last quarter of the layers, with the batch-norm
# statistics of the start and without a head. Channels last makes a step of a depthwise network up to three times as
# fast on a CPU.
MOST_ADAPT_EPOCHS = 20  # for a few hundred images
ADAPTING: Layer = {
    "views": {
        "pipeline": "simclr",
        "crop_min": 0.3,
        "brightness": 0.32,  # this and the others are 0.4 times SimCLR's
        "contrast": 0.32,
        "saturation": 0.32,
        "hue": 0.08,
        "grey": 0.08,
        "blur": 0.2,
    },
    "model": {"head": "none", "keep_statistics": True, "keep_layers": 0.75},
    "optim": {"name": "adamw", "lr": 1e-4, "lr_end": 0.0, "warmup_epochs": 0.3, "weight_decay": 1e-4},
    "train": {"batch_size": defaults.ADAPT_BATCH_SIZE, "channels_last": True},
}


def adapt_preset(facts: DataFacts, own: Layer) -> Layer:
    """The preset `adapt` of a method: what all methods share on these data, and the method's `own` values."""
    epochs = min(MOST_ADAPT_EPOCHS, max(1, round(defaults.ADAPTED_IMAGES / max(1, facts.images))))
    views: Layer = {"views": SHAPES_BUDGET["views"]} if facts.name == "shapes" else {}
    # A probe takes about as long as an epoch of a thousand images, and start and end are what counts.
    length: Layer = {"train": {"epochs": epochs}, "probe": {"every": epochs}}
    return merge([ADAPTING, views, length, own])


def robust_preset(facts: DataFacts, own: Layer) -> Layer:
    """The preset `robust` of a method: what all methods share on these data, and the method's `own` values."""
    return merge([SHARED, SHAPES_BUDGET if facts.name == "shapes" else {}, own])


def usual_presets(facts: DataFacts, paper: Layer, own: Layer) -> dict[str, Layer]:
    """`paper`, `robust` with the method's `own` values, and `shapes`: the same in the time for the built-in data."""
    robust = robust_preset(facts, own)
    return {"paper": paper, "robust": robust, "shapes": merge([robust, SHAPES_BUDGET])}


class Method(nn.Module):
    """A way to learn an encoder. Calling it computes the loss; subclasses are final.

    The loss is computed in two halves, so that a batch can go through the encoder in parts
    (`train.accumulate`) while the objective still sees all of it.
    """

    Options: ClassVar[type[MethodOptions]]
    views_needed: ClassVar[int] = 2  # large ones
    most_views: ClassVar[int | None] = 2  # that it compares; None: as many as there are
    needs_labels: ClassVar[bool] = False  # if so, it trains on the labelled images only
    pairs_images: ClassVar[bool] = False  # whether `partners` pairs an image with others, which a stream cannot give
    encoder: nn.Module
    head: nn.Module  # everything else that is learned; saved as head.safetensors

    @classmethod
    def presets(cls, facts: DataFacts) -> dict[str, Layer]:
        """Named sets of values for this method on this data, as sections of the configuration."""
        raise NotImplementedError

    @classmethod
    def preset(cls, name: str, facts: DataFacts) -> Layer:
        presets = cls.presets(facts)
        if name not in presets:
            method = cls.Options.model_fields["name"].default
            raise UserError(f"{method} has no preset {name!r}; use {' or '.join(presets)}")
        return presets[name]

    @classmethod
    def usual_preset(cls, facts: DataFacts, epochs: int, has_start: bool) -> str:
        """The preset if the user names none: `adapt` for a run that starts from an encoder, if the method has it."""
        return ADAPT if has_start and ADAPT in cls.presets(facts) else cls.default_preset(facts, epochs)

    @classmethod
    def default_preset(cls, facts: DataFacts, epochs: int = defaults.EPOCHS) -> str:
        """The preset from random weights if the user names none: `paper`, or `shapes` on the built-in data."""
        return "shapes" if facts.name == "shapes" else "paper"

    @classmethod
    def completed(cls, config: Config) -> Config:
        """The configuration with the method's automatic values filled in, after its rules are checked."""
        return config

    @classmethod
    def remarks(cls, config: Config, facts: DataFacts) -> list[str]:
        """What the user should know before the training begins, in whole sentences."""
        return []

    @classmethod
    def values_in_words(cls, config: Config) -> dict[str, str]:
        """Every option that is set, by its name in plain words."""
        values = config.method.model_dump(exclude_none=True, exclude={"name", "preset"})
        return {key.replace("_", " "): value_in_words(value) for key, value in values.items()}

    @classmethod
    def prototype_count(cls, config: Config) -> int | None:
        """How many prototypes the method learns; None if it learns none (PCL's are clusters, found by k-means)."""
        return None

    @classmethod
    def probed_prototypes(cls, config: Config) -> int | None:
        """How many prototypes a probe examines; None if there are none."""
        return cls.prototype_count(config)

    @classmethod
    def loss_variant(cls, config: Config) -> str | None:
        """Which reading of the loss this is, for a method whose paper allows several."""
        return None

    @classmethod
    def compared_pairs(cls, config: Config) -> int | None:
        """Pairs of views that the loss compares in one batch; None where that is not a matter of pairs alone."""
        return None

    @classmethod
    def clustering_distances(cls, config: Config, images: int) -> int:
        """Distances from an image to a centroid that clustering computes in the whole run; 0 without clustering."""
        return 0

    @classmethod
    def passes(cls, config: Config, sides: Sequence[int]) -> float:
        """What an image costs in one epoch, whatever the machine: forward and backward passes of a view of 32 px.

        `sides` are those of the views, in pixels. A pass of a larger view counts by its pixels, and one without
        gradients is a third of a pass.
        """
        compared = sides[: cls.most_views]
        return view_passes(compared) * (1 + FORWARD * (config.train.accumulate > 1))

    def represent(self, batch: Batch) -> Tensor:
        """What the objective needs of each image: (V, B, ...)."""
        raise NotImplementedError

    def objective(self, represented: Tensor, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        """The loss over the whole batch at `progress` in [0, 1] of the training, and figures to log."""
        raise NotImplementedError

    def forward(self, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        return self.objective(self.represent(batch), batch, progress)

    def objective_input(self, embeddings: Tensor) -> Tensor:
        """What `objective` takes of each image, from the embeddings (N, D) of one view."""
        return embeddings

    def choosing_parts(self) -> list[nn.Module]:
        """The modules that choosing a prototype needs in memory, besides encoder and projection."""
        return []

    def logged(self, progress: float) -> dict[str, float]:
        """Values of the method's schedules and state. Called only for logging, so it may wait for the device."""
        return {}

    def embed(self, images: Tensor) -> Tensor:
        """The embeddings (B, D) that the loss compares; if they collapse, the method has."""
        raise NotImplementedError

    def log_assignments(self, images: Tensor) -> Tensor | None:
        """Log-probabilities over the prototypes (B, K), for methods that have prototypes."""
        return None

    def prototype_vectors(self) -> Tensor | None:
        """The prototypes (K, D), for methods that have them."""
        return None

    def findings(self, health: PrototypeHealth | None, spread: float, epochs_done: int) -> list[Finding]:
        """What is wrong with the method after so many epochs, the worst first, each with a remedy.

        `health` is that of the prototypes, None for a method without; `spread` is that of what `embed` gives.
        """
        if health is None:
            return examine_spread(spread, epochs_done)
        return examine(health, epochs_done, usual_remedies(health.prototypes)) if epochs_done else []

    def before_epoch(self, epoch: int, embed_all: EmbedFn) -> None:
        """Called before each epoch."""

    def partners(self, epoch: int) -> np.ndarray | None:
        """(images,) for each image the one that its other views show in this epoch; None: all views show one image.

        A function of the method's state at the beginning of the epoch, so that a resumed epoch has the same pairs.
        """
        return None

    def after_backward(self, progress: float) -> None:
        """Called between the backward pass and the optimiser's step."""

    def after_step(self, progress: float) -> None:
        """Called after the optimiser's step."""


def view_passes(sides: Sequence[int]) -> float:
    """Passes of these views through the encoder, one of 32 px counting as one."""
    return sum((side / 32) ** 2 for side in sides)


def value_in_words(value: object) -> str:
    """A value of an option or a protocol: short numbers, lists without brackets."""
    if isinstance(value, list | tuple):
        return ", ".join(map(value_in_words, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def encoder_and_projection(config: Config, facts: DataFacts, batch_norm: bool) -> tuple[nn.Module, ProjectionHead]:
    """The encoder and the head that all methods share, 512 -> 512 -> 128 in the paper (appendix A).

    `batch_norm` is what the method has unless `model.head_batch_norm` is set.
    """
    model = config.model
    if model.head_batch_norm is not None:
        batch_norm = model.head_batch_norm
    encoder = build_learning_encoder(model, facts.channels, facts.image_size)
    features = feature_size(encoder, facts.channels, facts.image_size)
    if model.head == "none":
        return encoder, NoProjection(features)
    return encoder, ProjectionHead(features, model.hidden_dim, model.output_dim, model.hidden_layers, batch_norm)


def through(images: Tensor, *modules: nn.Module) -> Tensor:
    """What the modules make of the images, one after the other."""
    for module in modules:
        images = module(images)
    return images


def learned_prototypes(head: nn.Module) -> Tensor:
    """The prototypes (K, D) of a head whose `prototypes` are `Prototypes`, on the CPU and without a gradient."""
    return head.get_parameter("prototypes.linear.weight").detach().cpu()


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


def spread(embeddings: Tensor) -> Tensor:
    """How far unit embeddings (B, D) fill their sphere: 1 if all directions occur equally, 0 if all are the same.

    Standard deviation of each dimension, averaged, times sqrt(D) (Chen and He 2021, section 4.1).
    """
    unit = F.normalize(embeddings.detach().float(), dim=1)
    return unit.std(dim=0).mean() * math.sqrt(unit.shape[1])


@torch.no_grad()
def contrast_figures(queries: Tensor, keys: Tensor) -> Metrics:
    """`ranked_first`: share of this process's images whose own key is the most alike; and the spread of the queries."""
    similarity = F.normalize(queries.float(), dim=1) @ F.normalize(keys.float(), dim=1).T
    found = similarity.argmax(dim=1) == torch.arange(len(queries), device=queries.device)
    return {"ranked_first": found.float().mean(), "spread": spread(queries)}
