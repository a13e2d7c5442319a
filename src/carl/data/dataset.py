"""The one form in which images reach the rest of the program, whatever they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from carl.data.decoding.file_arrays import FileArray
from carl.framing import Interpolation

if TYPE_CHECKING:
    from carl.data.photo_images import PhotoImages
    from carl.data.sources.shards import Shards

UNLABELLED = -1

# What training cuts its views from: packed pixels, the image files themselves, or shards that it reads as it goes.
ViewSource = Literal["packed", "photos", "stream"]


@dataclass(frozen=True, eq=False)
class PackedImages:
    """Equal-sized images in one array, in memory or in a file."""

    pixels: np.ndarray | FileArray  # (N, H, W, C) uint8

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

    def first(self, count: int) -> PackedImages:
        """The first `count` images; nothing is copied."""
        pixels = self.pixels
        return PackedImages(pixels.first(count) if isinstance(pixels, FileArray) else pixels[:count])


@dataclass(frozen=True, eq=False)
class Split:
    """Images that belong together, with labels if the source has them."""

    images: PackedImages
    labels: np.ndarray | None = None  # (N,) int64, UNLABELLED for an image without one
    names: tuple[str, ...] | None = None  # file names, if the images were files
    photos: PhotoImages | None = None  # the same images as files, if training cuts its views from them

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
            None if self.photos is None else self.photos.subset(indices),
        )

    def head(self, count: int) -> Split:
        """The first `count` images; nothing is copied."""
        return Split(
            self.images.first(count),
            None if self.labels is None else self.labels[:count],
            None if self.names is None else self.names[:count],
            None if self.photos is None else self.photos.subset(np.arange(count)),
        )


@dataclass(frozen=True)
class Statistics:
    """Mean and standard deviation per channel, for values in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Dataset:
    """What a source gives: its splits, its classes and the statistics of its training images."""

    name: str  # as on the command line
    splits: Mapping[str, Split]  # always "train"; "test", "val" and "unlabeled" if the source has them
    statistics: Statistics
    fingerprint: str  # changes when the images change
    class_names: tuple[str, ...] = field(default=())
    notes: tuple[str, ...] = ()  # what the user should know: images resized, files left out
    folds: tuple[np.ndarray, ...] = ()  # for STL-10: ten arrays of 1,000 indices into train
    opened: str = "train"  # the split that the user's path named: "test" for photos-test.parquet
    fitted: bool = False  # whether the images had to be scaled and cut to one size to be packed
    interpolation: Interpolation = "bicubic"  # how that was done, and is done to other images
    stream: Shards | None = None  # what training reads, if the splits hold only a sample of it

    @property
    def train(self) -> Split:
        return self.splits["train"]

    @property
    def pretraining(self) -> Split:
        """What self-supervised training reads: the unlabelled images if the source keeps them apart, else train."""
        return self.splits.get("unlabeled", self.train)

    @property
    def views_from(self) -> ViewSource:
        """What training cuts its views from."""
        if self.stream is not None:
            return "stream"
        return "packed" if self.pretraining.photos is None else "photos"

    @property
    def training_images(self) -> int:
        """How many images there are to train on."""
        return len(self.pretraining) if self.stream is None else self.stream.images

    @property
    def test(self) -> Split | None:
        """What evaluation reads: the test images, or the validation images if only those have labels."""
        found = [self.splits[name] for name in ("test", "val") if name in self.splits]
        return next((split for split in found if split.labelled), found[0] if found else None)
