"""From a configuration to the objects it describes: device, data, views, method."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from carl.config import Config, Layer, merge
from carl.data.images import UNLABELLED, Dataset
from carl.data.listing import throttled
from carl.data.shards import names_shards
from carl.data.sources import SOURCES, open_dataset
from carl.data.streaming import open_stream
from carl.data.views import ViewRecipe, Views, pipeline
from carl.errors import UserError
from carl.memory import keep_freed_memory
from carl.methods import DataFacts, Method, find_method
from carl.terminal import show_progress


def pick_device(name: str) -> torch.device:
    """`auto` takes the best there is."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"train.device={name!r} is not a device; use auto, cpu, cuda, cuda:N or mps") from None
    if device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"train.device={name!r} is not supported; use auto, cpu, cuda, cuda:N or mps")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"train.device={name!r}: torch sees no CUDA device here; use auto or cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"train.device={name!r}: there are {torch.cuda.device_count()} CUDA devices; use a lower number"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("train.device='mps': torch sees no MPS device here; use auto or cpu")
    return device


def with_absolute_paths(layer: Layer) -> Layer:
    """The layer with files and folders named in full, so that a run can be resumed from anywhere."""
    paths: dict[str, dict[str, Any]] = {}
    for section, key in (("data", "source"), ("model", "init")):
        value = layer.get(section, {}).get(key)
        if not isinstance(value, str) or value in SOURCES or value == "timm":
            continue
        if _exists(value):
            paths.setdefault(section, {})[key] = str(Path(value).resolve())
        elif key == "source" and names_shards(value) and "://" not in value:
            paths.setdefault(section, {})[key] = str(Path(value).absolute())
    return merge([layer, paths])


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # too long for the file system, or with a null byte
        return False


def load_data(config: Config) -> Dataset:
    """The data set, without `data.held_out` training images and cut to `data.limit` where these are set."""
    data = config.data
    if data.road == "stream" or (data.road == "auto" and names_shards(data.source)):
        return load_stream(config)
    dataset = open_dataset(
        data.source,
        image_size=data.image_size,
        root=None if data.root is None else Path(data.root),
        max_bad=data.max_bad,
        road=data.road,
        progress=show_progress,
    )
    if find_method(config.method.name).needs_labels:
        dataset = labelled_only(dataset, config.method.name)
    if data.held_out:
        dataset = hold_out(dataset, data.held_out)
    limit = config.data.limit
    if limit is None or limit >= len(dataset.pretraining):
        return dataset
    key = "unlabeled" if "unlabeled" in dataset.splits else "train"
    whole = dataset.splits[key]
    return dataclasses.replace(dataset, splits={**dataset.splits, key: whole.head(limit)})


def hold_out(dataset: Dataset, count: int) -> Dataset:
    """`count` training images, evenly spaced, in the place of the test images, which nobody sees then."""
    train = dataset.train
    if count >= len(train):
        raise UserError(f"data.held_out={count} leaves none of the {len(train)} training images; hold out fewer")
    kept = np.ones(len(train), dtype=bool)
    kept[np.arange(count) * len(train) // count] = False
    splits = {name: split for name, split in dataset.splits.items() if name == "unlabeled"}
    splits |= {"train": train.subset(kept.nonzero()[0]), "test": train.subset((~kept).nonzero()[0])}
    return dataclasses.replace(dataset, splits=splits, folds=())


def load_stream(config: Config) -> Dataset:
    """Shards that are read as training goes; what needs all images at hand is refused."""
    data = config.data
    if find_method(config.method.name).needs_labels:
        raise UserError(f"a stream has no labels, and {config.method.name} needs them; choose another --method")
    if data.limit is not None:
        raise UserError(f"data.limit={data.limit} cannot cut a stream; name fewer shards")
    if data.held_out:
        raise UserError(f"data.held_out={data.held_out} cannot cut a stream; keep shards of their own for judging")
    return open_stream(data.source, data.image_size, data.max_bad, throttled(show_progress))


def labelled_only(dataset: Dataset, purpose: str) -> Dataset:
    """The data set without its unlabelled images, for what needs labels; on STL-10 the 5,000 of `train`."""
    train = dataset.train
    if not train.labelled or train.labels is None:
        raise UserError(f"{dataset.name} has no labels, and {purpose} needs them; choose another --method")
    known = train.labels != UNLABELLED
    if not known.all():
        train = train.subset(known.nonzero()[0])
    splits = {name: split for name, split in dataset.splits.items() if name != "unlabeled"}
    return dataclasses.replace(dataset, splits={**splits, "train": train})


def recognised_name(source: str) -> str:
    """The known data set that a source is or that its file is named after, else the source itself."""
    stem = re.sub(r"[^a-z0-9]", "", Path(source).name.lower())
    for name in sorted(SOURCES.keys() - {"shapes"}, key=len, reverse=True):  # cifar100 before cifar10
        if stem.startswith(name.replace("-", "")):
            return name
    return source


def gather_facts(config: Config, dataset: Dataset) -> DataFacts:
    images = dataset.pretraining.images
    return DataFacts(
        name=recognised_name(config.data.source),
        images=dataset.training_images,
        channels=images.channels,
        image_size=config.data.image_size or min(images.height, images.width),
        classes=len(dataset.class_names),
    )


def build_views(config: Config, dataset: Dataset) -> Views:
    assert config.data.image_size is not None
    recipes = [_adjusted(r, config) for r in pipeline(config.views.pipeline, config.data.image_size)]
    return Views(recipes, dataset.statistics.mean, dataset.statistics.std, config.train.seed)


def _adjusted(recipe: ViewRecipe, config: Config) -> ViewRecipe:
    """The pipeline's recipe with the user's options in it."""
    views = config.views
    if views.crop_min is not None and recipe.crop_area is not None and recipe.size == config.data.image_size:
        recipe = dataclasses.replace(recipe, crop_area=(views.crop_min, max(recipe.crop_area[1], views.crop_min)))
    if views.jitter_strength is not None:
        factor = views.jitter_strength
        recipe = dataclasses.replace(
            recipe,
            brightness=recipe.brightness * factor,
            contrast=recipe.contrast * factor,
            saturation=recipe.saturation * factor,
            hue=min(0.5, recipe.hue * factor),
        )
    given = {name: getattr(views, name) for name in ("hue", "grey", "blur", "blur_sigma", "blur_kernel")}
    return dataclasses.replace(recipe, **{name: value for name, value in given.items() if value is not None})


def build_method(config: Config, facts: DataFacts, device: torch.device) -> Method:
    """The method as `train.seed` makes it."""
    if device.type == "cpu":
        keep_freed_memory()
    torch.manual_seed(config.train.seed)
    method = find_method(config.method.name)(config, facts).to(device)
    if config.train.channels_last:
        method.to(memory_format=torch.channels_last)
    if config.train.compile:
        method.encoder.compile()
    return method


def without_init(config: Config) -> Config:
    """The configuration without starting weights, for when others will be loaded."""
    return config.model_copy(update={"model": config.model.model_copy(update={"init": None})})


def random_encoder(config: Config, facts: DataFacts, device: torch.device) -> nn.Module:
    """The run's encoder as it was before training (or, with --init, before those weights)."""
    state = torch.get_rng_state()
    torch.manual_seed(config.train.seed)
    encoder = find_method(config.method.name)(without_init(config), facts).encoder.to(device)
    torch.set_rng_state(state)
    return encoder
