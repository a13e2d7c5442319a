"""What a source holds, before any pixel is read. Making a listing is cheap; packing it is not."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from carl.data.decoding.file_arrays import FileArray
from carl.defaults import MOST_CLASSES
from carl.errors import UserError

if TYPE_CHECKING:
    from carl.data.sources.shards import Shards

LARGEST_IMAGE = 256 * 2**20  # bytes of an image file: more than any photo has, and little enough for memory
MOST_LETTERS = 2**24  # in the names of all classes together: 256 each if there are MOST_CLASSES


@dataclass(frozen=True)
class Unusable:
    """An image that is known to be bad before it is read."""

    reason: str


@dataclass(frozen=True)
class BadFile:
    """An image that was left out because it cannot be decoded, and why."""

    name: str
    reason: str


Content = bytes | Path | np.ndarray | Unusable  # encoded bytes, a file, or pixels (H, W, C) uint8


@dataclass(frozen=True, eq=False, slots=True)
class EncodedImage:
    """One image that is not decoded yet."""

    name: str
    content: Content
    label: int


@dataclass(frozen=True, eq=False)
class EncodedSplit:
    """Images to decode one by one; their sizes are not known yet."""

    count: int
    labelled: bool
    read: Callable[[], Iterator[EncodedImage]]
    named: bool = True  # whether the names mean something to the user
    folder: Path | None = None  # which the names are relative to, if the images are files


@dataclass(frozen=True, eq=False)
class ArraySplit:
    """Equal-sized images that are pixels already, in blocks (n, H, W, C), each with labels (n,) or None."""

    count: int
    read: Callable[[], Iterator[tuple[np.ndarray, np.ndarray | None]]]


@dataclass(frozen=True, eq=False)
class StoredSplit:
    """Pixels in a file that can be used as it is, such as a .npy file."""

    pixels: FileArray  # (N, H, W, C) uint8
    labels: np.ndarray | None = None  # (N,) int64

    @property
    def count(self) -> int:
        return len(self.pixels)


SplitListing = EncodedSplit | ArraySplit | StoredSplit


@dataclass(frozen=True, eq=False)
class Listing:
    """The splits of a source, and a key that changes when its files do."""

    name: str
    key: str | None  # None: a change could not be noticed, so nothing is cached
    splits: Mapping[str, SplitListing]
    class_names: tuple[str, ...] = ()
    classes_guessed: bool = False  # whether the classes are sub-folders, which the user may have meant otherwise
    folds: tuple[np.ndarray, ...] = ()
    opened: str = "train"  # the split that the user's path named
    notes: tuple[str, ...] = field(default=())
    shards: Shards | None = None  # if set, training reads these as it goes instead of packing all images

    def __post_init__(self) -> None:
        check_class_names(self.class_names, self.name)


def check_class_names(names: Collection[str], where: str) -> None:
    """Refuse more or longer class names than any data set has: a few compressed bytes can stand for any number."""
    letters = sum(map(len, names))
    if len(names) > MOST_CLASSES or letters > MOST_LETTERS:
        raise UserError(
            f"{where} has at least {len(names)} class names with {letters} letters; at most {MOST_CLASSES} classes and "
            f"{MOST_LETTERS} letters are allowed: use fewer classes or shorter names"
        )


def files_key(files: Iterable[str | Path]) -> str:
    """A digest of the absolute paths, sizes and modification times of files; their contents are not read."""
    digest = hashlib.blake2b(digest_size=16)
    for path in files:
        try:
            status = os.stat(path)
            line = f"{status.st_size} {status.st_mtime_ns}"
        except OSError:  # a link to nothing, which is reported as bad when it is read
            line = "missing"
        digest.update(b"\0" + os.fsencode(path) + b"\0" + line.encode())
    return digest.hexdigest()


SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
    "unlabeled": "unlabeled",
    "unlabelled": "unlabeled",
}
_SPLIT_WORD = re.compile(
    rf"(?:^|(?<=[^a-z0-9]))({'|'.join(sorted(SPLIT_WORDS, key=len, reverse=True))})(?=$|[^a-z0-9])",
    re.IGNORECASE,
)


def split_in_name(name: str) -> tuple[str, str, str] | None:
    """(text before, split, text after) for a name such as `cifar100-train-10k`; None if it names no split."""
    found = list(_SPLIT_WORD.finditer(name))
    if not found:
        return None
    match = found[-1]  # in `test-images-train` the last word decides
    return name[: match.start()], SPLIT_WORDS[match.group().lower()], name[match.end() :]


_SHARD = re.compile(r"[-_.]?\d+(?:[-_]of[-_]\d+)?$")


def splits_beside(path: Path, stem: str, candidates: Iterable[tuple[Path, str]]) -> dict[str, list[Path]]:
    """The paths of all splits that belong to `path`, found by their names; {} if the name of `path` has no split in it.

    If there are several candidates for a split, the one named most like `path` is taken. Numbered shards stay together.
    """
    own = split_in_name(stem)
    if own is None:
        return {}
    before, own_split, after = own
    groups: dict[str, dict[str, list[Path]]] = {}
    for candidate, candidate_stem in sorted(candidates):
        parts = split_in_name(candidate_stem)
        if parts is not None and parts[0].lower() == before.lower() and parts[1] != own_split:
            groups.setdefault(parts[1], {}).setdefault(_SHARD.sub("", parts[2]), []).append(candidate)
    found = {own_split: [path]}
    for split, by_suffix in groups.items():
        like = _SHARD.sub("", after)
        found[split] = by_suffix[like if like in by_suffix else min(by_suffix, key=lambda s: (len(s), s))]
    return found


def as_splits(found: Mapping[str, list[Path]], opened: str) -> tuple[dict[str, list[Path]], str]:
    """The same with a training split: if a source has none, the split that was opened takes its place."""
    splits = dict(found)
    if "train" not in splits:
        splits["train"] = splits.pop(opened)
        opened = "train"
    order = ["train", "val", "test", "unlabeled"]
    return {split: splits[split] for split in order if split in splits}, opened
