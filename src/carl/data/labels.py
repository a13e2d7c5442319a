"""Which labels are used: a source's own, sub-folders that are taken for classes, or none."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from carl.data.dataset import Dataset
from carl.defaults import LABELS, Labels
from carl.errors import UserError, printable, suggestion

# What stands beside the digits in names that tell when, where or in which order pictures were taken, not what is in
# them: cameras' prefixes, parts of a collection, and times.
_NOT_CLASSES = frozenset(
    {"img", "image", "images", "dsc", "dscn", "dscf", "dcim", "pict", "pic", "photo", "photos", "mvi", "vid", "pxl"}
    | {"scan", "cam", "camera", "p", "part", "batch", "set", "folder", "dir", "shard", "chunk", "group", "roll"}
    | {"session", "shoot", "run", "day", "week", "month", "year", "am", "pm"}
    | {"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec"}
    | {"january", "february", "march", "april", "june", "july", "august"}
    | {"september", "october", "november", "december"}
)
_CAMERA_FOLDER = re.compile(r"[1-9]\d\d[A-Z0-9_]{5}")  # 100CANON, as cameras name them (the standard DCF)
_SHOWN = 3  # names in a note


def check_labels(labels: str) -> None:
    if labels not in LABELS:
        raise UserError(f"labels={labels!r} is unknown{suggestion(labels, LABELS)}")


def with_labels(dataset: Dataset, labels: Labels, guessed: bool) -> Dataset:
    """The data set with the labels that the user wants. `guessed`: its classes are sub-folders.

    Images, cache and fingerprint are the same with and without labels.
    """
    if labels == "none":
        return without_labels(dataset)
    if not guessed:
        return dataset
    names = dataset.class_names
    many = f"{len(names)} sub-folders"
    if labels == "auto" and named_like_numbers(names):
        note = f"{many} are named like dates or numbers ({_some(names)}), so they are not taken for classes; "
        return _noted(without_labels(dataset), note + "--labels folders takes them")
    return _noted(dataset, f"{many} are taken for classes: {_some(names)}; --labels none turns this off")


def named_like_numbers(names: Sequence[str]) -> bool:
    """Whether at least half of the names are dates, numbers or what cameras write, such as 2023-05, 001 or IMG_001."""
    return 2 * sum(map(_is_like_a_number, names)) >= len(names) > 0


def _is_like_a_number(name: str) -> bool:
    if not any(sign.isdigit() for sign in name):
        return False
    words = re.findall(r"[^\W\d_]+", name.lower())
    return all(word in _NOT_CLASSES for word in words) or _CAMERA_FOLDER.fullmatch(name) is not None


def without_labels(dataset: Dataset) -> Dataset:
    splits = {name: dataclasses.replace(split, labels=None) for name, split in dataset.splits.items()}
    return dataclasses.replace(dataset, splits=splits, class_names=())


def _noted(dataset: Dataset, note: str) -> Dataset:
    return dataclasses.replace(dataset, notes=(note, *dataset.notes))


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(printable(name) for name in names[:_SHOWN])
    return f"{shown}, ..." if len(names) > _SHOWN else shown
