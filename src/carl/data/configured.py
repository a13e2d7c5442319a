"""The data set that a configuration names, cut down as the configuration says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from carl.config import DataConfig, LimitBy
from carl.data.dataset import UNLABELLED, Dataset, Split, Statistics
from carl.data.open import open_dataset
from carl.errors import UserError
from carl.terminal import show_progress


def load_data(data: DataConfig, labels_for: str | None = None) -> Dataset:
    """The data set, without the held-out images (`data.held_out`) and cut to `data.limit` images if those are set.

    `labels_for` names a method that trains only on labelled images.
    """
    dataset = open_dataset(
        data.source,
        image_size=data.image_size,
        root=None if data.root is None else Path(data.root),
        interpolation=data.interpolation,
        max_bad=data.max_bad,
        views_from=data.views_from,
        labels=data.labels,
        progress=show_progress,
    )
    if data.mean is not None and data.std is not None:
        dataset = dataclasses.replace(dataset, statistics=_given(data.mean, data.std, dataset))
    if dataset.stream is not None:
        _check_uncut(data, labels_for)
    if labels_for is not None:
        dataset = labelled_only(dataset, labels_for)
    if data.held_out:
        dataset = hold_out(dataset, data.held_out)
    limit = data.limit
    if limit is None or limit >= len(dataset.pretraining):
        return dataset
    key = "unlabeled" if "unlabeled" in dataset.splits else "train"
    part = limited(dataset.splits[key], limit, data.limit_by)
    folds = dataset.folds if key != "train" else ()  # which are of all training images
    return dataclasses.replace(dataset, splits={**dataset.splits, key: part}, folds=folds)


def limited(split: Split, count: int, by: LimitBy) -> Split:
    """`count` images of a split: the first ones, or a random part in which the classes are as equal as they can be."""
    return split.head(count) if by == "first" else split.subset(balanced_rows(split, count))


def balanced_rows(split: Split, count: int) -> np.ndarray:
    """The places of `count` images, in order. They are always the same ones, and those of a smaller `count` are among
    them.

    Classes take turns, each with its images in random order. If some images have no label, chance alone decides.
    """
    order = np.random.default_rng(0).permutation(len(split))
    if split.labels is not None and bool((split.labels != UNLABELLED).all()):
        labels = split.labels[order]
        by_class = np.argsort(labels, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(labels))])
        turn = np.empty(len(split), np.int64)  # how many images of its class come before each
        turn[by_class] = np.arange(len(split)) - starts[labels[by_class]]
        order = order[np.argsort(turn, kind="stable")]
    return np.sort(order[:count])


def _given(mean: tuple[float, ...], std: tuple[float, ...], dataset: Dataset) -> Statistics:
    """The normalisation that the configuration gives, for images of as many channels."""
    channels = dataset.train.images.channels
    if len(mean) != channels:
        raise UserError(
            f"data.mean={list(mean)} is for {len(mean)} channels and the images have {channels}; leave data.mean and "
            "data.std out, or set data.normalise=images"
        )
    return Statistics(mean, std)


def _check_uncut(data: DataConfig, labels_for: str | None) -> None:
    """Refuse options that a stream cannot follow, because they need all images at hand."""
    if labels_for is not None:
        raise UserError(f"shards have no labels, and {labels_for} needs them; choose another --method")
    if data.limit is not None:
        raise UserError(f"data.limit={data.limit} cannot be used with shards; name fewer shards")
    if data.held_out:
        raise UserError(f"data.held_out={data.held_out} cannot be used with shards; set some of them aside")


def hold_out(dataset: Dataset, count: int) -> Dataset:
    """Replace the test images, which nobody sees then, by `count` evenly spaced training images."""
    train = dataset.train
    if count >= len(train):
        raise UserError(f"data.held_out={count} leaves none of the {len(train)} training images; hold out fewer")
    kept = np.ones(len(train), dtype=bool)
    kept[np.arange(count) * len(train) // count] = False
    splits = {name: split for name, split in dataset.splits.items() if name == "unlabeled"}
    splits |= {"train": train.subset(kept.nonzero()[0]), "test": train.subset((~kept).nonzero()[0])}
    return dataclasses.replace(dataset, splits=splits, folds=())


def labelled_only(dataset: Dataset, purpose: str) -> Dataset:
    """The data set without its unlabelled images; for STL-10 that leaves the 5,000 of `train`."""
    train = dataset.train
    if not train.labelled or train.labels is None:
        raise UserError(f"{dataset.name} has no labels, and {purpose} needs them; choose another --method")
    known = train.labels != UNLABELLED
    if not known.all():
        train = train.subset(known.nonzero()[0])
    splits = {name: split for name, split in dataset.splits.items() if name != "unlabeled"}
    return dataclasses.replace(dataset, splits={**splits, "train": train})
