"""Every method made small: a tiny encoder, and options with which each of its parts is at work within a few steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from carl.config import Config, resolve
from carl.data.batches.base import Batch
from carl.data.facts import DataFacts
from carl.data.sources.shapes import make_shapes
from carl.methods import METHODS, Method
from carl.views.recipes import pipeline
from carl.views.views import Views

IMAGES, SIZE, EPOCHS = 64, 16, 8
EPOCH, PROGRESS = 4, 0.5  # by then nothing waits for its epoch any more
FACTS = DataFacts(name="shapes", images=IMAGES, channels=3, image_size=SIZE, classes=10)
TINY: dict[str, dict[str, Any]] = {"model": {"backbone": "test_resnet", "hidden_dim": 64, "output_dim": 32}}
# Queues that no batch of 8 or 16 fills evenly; values that tests count on do not follow the preset, which may change.
CONTRAST = {"temperature": 0.2, "momentum": 0.9, "queue": 20, "shuffle_groups": 2}
SMALL: dict[str, dict[str, Any]] = {
    "carl": {"prototypes": 10, "embedding_norm": "batch"},
    "byol": {"momentum": 0.9},
    "carp": {"prototypes": 10, "partition_size": 3, "momentum": 0.9},
    "deepcluster": {"clusters": [4, 8, 6]},
    "moco": CONTRAST,
    "pcl": {**CONTRAST, "clusters": [4, 8], "warmup_epochs": 1, "restarts": 1},
    "swav": {
        "prototypes": 10, "temperature": 0.1, "epsilon": 0.05, "iterations": 3, "queue": 20, "queue_epoch": 1,
        "frozen_epochs": 1.0,
    },
}  # fmt: skip


@cache
def shapes() -> tuple[Tensor, Tensor]:
    pixels, labels = make_shapes(IMAGES, 0)
    return torch.from_numpy(pixels), torch.from_numpy(labels)


def settings(name: str, **method: Any) -> Config:
    """The method's configuration for the built-in data, made small."""
    chosen = METHODS[name]
    layers = [
        chosen.preset(chosen.default_preset(FACTS), FACTS),
        TINY,
        {
            "data": {"source": "shapes", "image_size": SIZE},
            "method": {"name": name, **SMALL.get(name, {}), **method},
            "train": {"epochs": EPOCHS, "batch_size": 16},
        },
    ]
    return chosen.completed(resolve(layers, chosen.Options))


def make(name: str, epoch: int = EPOCH, **method: Any) -> Method:
    """The method as an epoch of its training begins."""
    torch.manual_seed(0)
    made = METHODS[name](settings(name, **method), FACTS)
    made.before_epoch(epoch, embedder(made))
    return made


def embedder(method: Method) -> Callable[[Callable[[Tensor], Tensor]], tuple[Tensor, Tensor]]:
    """`embed_all` as a run has it: the frozen method on all images."""
    views = Views(pipeline("eval", SIZE), (0.5, 0.5, 0.5), (0.2, 0.2, 0.2), seed=0)
    (images,) = views(shapes()[0], torch.arange(IMAGES), 0)

    def embed_all(function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        method.eval()
        with torch.no_grad():
            found = function(images)
        method.train()
        return torch.arange(IMAGES), found

    return embed_all


def make_batch(name: str, size: int = 8, first: int = 0, views: str | None = None, device: str = "cpu") -> Batch:
    """Images of the built-in data through the real views of the method's pipeline."""
    pixels, labels = shapes()
    rows = torch.arange(first, first + size)
    images = pixels[rows].to(device)
    recipes = pipeline(views or settings(name).views.pipeline, SIZE)
    made = Views(recipes, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2), seed=0)(images, rows.to(device), 0)
    return Batch(made, rows.to(device), labels[rows].to(device))
