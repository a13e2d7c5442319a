"""The one shape in which images reach the rest of the program, whatever they came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

UNLABELLED = -1


@dataclass(frozen=True, eq=False)
class PackedImages:
    """Equal-sized images in one array; memory-mapped when they come from the cache."""

    pixels: np.ndarray  # (N, H, W, C) uint8

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def height(self) -> int:
        return int(self.pixels.shape[1])

    @property
    def width(self) -> int:
        return int(self.pixels.shape[2])

    @property
    def channels(self) -> int:
        return int(self.pixels.shape[3])

    def gather(self, indices: np.ndarray) -> np.ndarray:
        """The images at `indices`, in that order, as a new array (B, H, W, C)."""
        return np.ascontiguousarray(self.pixels[indices])


@dataclass(frozen=True, eq=False)
class Split:
    """Images that belong together, with labels where the source has them."""

    images: PackedImages
    labels: np.ndarray | None = None  # (N,) int64, UNLABELLED where an image has none
    names: tuple[str, ...] | None = None  # file names, where the images were files

    def __len__(self) -> int:
        return len(self.images)

    @property
    def labelled(self) -> bool:
        return self.labels is not None and bool((self.labels != UNLABELLED).any())

    def subset(self, indices: np.ndarray) -> Split:
        """The images at `indices`, in that order, copied into memory."""
        return Split(
            PackedImages(self.images.gather(indices)),
            None if self.labels is None else self.labels[indices],
            None if self.names is None else tuple(self.names[i] for i in indices),
        )


@dataclass(frozen=True)
class Statistics:
    """Mean and standard deviation per channel, of values in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Dataset:
    """What a source gives: its splits, its classes and the statistics of its training images."""

    name: str  # as on the command line
    splits: Mapping[str, Split]  # "train" is always there; "test", "val", "unlabeled" where they exist
    statistics: Statistics
    fingerprint: str  # changes when the images change
    class_names: tuple[str, ...] = field(default=())
    notes: tuple[str, ...] = ()  # what the user should know: images resized, files left out
    folds: tuple[np.ndarray, ...] = ()  # STL-10: ten arrays of indices into train, 1,000 each
    opened: str = "train"  # the split that the user's path named: "test" for photos-test.parquet

    @property
    def train(self) -> Split:
        return self.splits["train"]

    @property
    def pretraining(self) -> Split:
        """What self-supervised training reads: the unlabelled images where the source sets them apart."""
        return self.splits.get("unlabeled", self.train)

    @property
    def test(self) -> Split | None:
        """What evaluation reads: the test images, or the validation images where only those have labels."""
        found = [self.splits[name] for name in ("test", "val") if name in self.splits]
        return next((split for split in found if split.labelled), found[0] if found else None)
