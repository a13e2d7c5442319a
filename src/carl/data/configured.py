"""The data set that a configuration names, cut down as it says."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np

from carl.config import DataConfig
from carl.data.batches.stream import open_stream
from carl.data.dataset import UNLABELLED, Dataset
from carl.data.listing import throttled
from carl.data.open import SOURCES, open_dataset
from carl.data.sources.shards import names_shards
from carl.errors import UserError
from carl.terminal import show_progress


def load_data(data: DataConfig, labels_for: str | None = None) -> Dataset:
    """The data set, without `data.held_out` training images and cut to `data.limit` where these are set.

    `labels_for` names a method that trains on labelled images alone.
    """
    if data.road == "stream" or (data.road == "auto" and names_shards(data.source)):
        return load_stream(data, labels_for)
    dataset = open_dataset(
        data.source,
        image_size=data.image_size,
        root=None if data.root is None else Path(data.root),
        max_bad=data.max_bad,
        road=data.road,
        progress=show_progress,
    )
    if labels_for is not None:
        dataset = labelled_only(dataset, labels_for)
    if data.held_out:
        dataset = hold_out(dataset, data.held_out)
    limit = data.limit
    if limit is None or limit >= len(dataset.pretraining):
        return dataset
    key = "unlabeled" if "unlabeled" in dataset.splits else "train"
    whole = dataset.splits[key]
    return dataclasses.replace(dataset, splits={**dataset.splits, key: whole.head(limit)})


def load_stream(data: DataConfig, labels_for: str | None) -> Dataset:
    """Shards that are read as training goes; what needs all images at hand is refused."""
    if labels_for is not None:
        raise UserError(f"a stream has no labels, and {labels_for} needs them; choose another --method")
    if data.limit is not None:
        raise UserError(f"data.limit={data.limit} cannot cut a stream; name fewer shards")
    if data.held_out:
        raise UserError(f"data.held_out={data.held_out} cannot cut a stream; keep shards of their own for judging")
    return open_stream(data.source, data.image_size, data.max_bad, throttled(show_progress))


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


def absolute_source(source: str) -> str:
    """The source with files and folders named in full, so that a run can be resumed from anywhere."""
    if source in SOURCES:
        return source
    if path_exists(source):
        return str(Path(source).resolve())
    return str(Path(source).absolute()) if names_shards(source) and "://" not in source else source


def path_exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # too long for the file system, or with a null byte
        return False
