"""The images that a command was given, one by one: listed, never packed, and decoded as they are needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from carl import launch
from carl.data.dataset import UNLABELLED
from carl.data.decoding.decode import Fitted
from carl.data.decoding.parallel import Oversized, measure_all
from carl.data.listing import ArraySplit, EncodedImage, EncodedSplit, SplitListing, StoredSplit
from carl.quality import Value


@dataclass(frozen=True, eq=False)
class ImageSource:
    """Images in a fixed order, not read yet."""

    name: str  # as the user gave it
    key: str  # changes when the images do
    splits: Mapping[str, SplitListing]
    class_names: tuple[str, ...] = ()
    by_split: bool = False  # whether images without names are named after their split
    files: bool = False  # whether the images are files and their names are paths

    @property
    def count(self) -> int:
        """The number of images; 0 if it is not known before they are read."""
        counts = [split.count for split in self.splits.values()]
        return sum(counts) if all(counts) else 0

    @property
    def labelled(self) -> bool:
        return any(_is_labelled(split) for split in self.splits.values())

    def read(self, start: int = 0) -> Iterator[tuple[str, EncodedImage]]:
        """Each image from number `start` on, with the name of its split."""
        for name, split in self.splits.items():
            if split.count and start >= split.count:
                start -= split.count
                continue
            prefix = name if self.by_split else Path(self.name).name
            if split.count:
                yield from ((name, image) for image in _images(split, prefix, start))
                start = 0
                continue
            for image in _images(split, prefix, 0):  # its length is not known, so the images to skip are read
                if start == 0:
                    yield name, image
                start = max(0, start - 1)


def _is_labelled(split: SplitListing) -> bool:
    if isinstance(split, EncodedSplit):
        return split.labelled
    return isinstance(split, ArraySplit) or split.labels is not None


def _images(split: SplitListing, prefix: str, start: int) -> Iterator[EncodedImage]:
    """The images of a split from number `start` on; images in arrays are named PREFIX#NUMBER."""
    if isinstance(split, EncodedSplit):
        yield from islice(split.read(), start, None)
        return
    number = 0
    for pixels, labels in [(split.pixels, split.labels)] if isinstance(split, StoredSplit) else split.read():
        for row in range(max(0, start - number), len(pixels)):
            label = UNLABELLED if labels is None else int(labels[row])
            yield EncodedImage(f"{prefix}#{number + row}", pixels[row], label)
        number += len(pixels)


Decoded = np.ndarray | str  # pixels (H, W, C), or why there are none
Seen = tuple[str, EncodedImage, Decoded, dict[str, Value] | None]  # split, image, pixels, and measures of its quality


def decoded_images(
    source: ImageSource, start: int, shape: Fitted, channels: int, wanted: Callable[[int], bool] | None = None
) -> Generator[Seen, None, None]:
    """Each image from number `start` on, in order, with its split and its pixels, cropped and scaled to `shape`.

    What quality checks look at is measured before that, so that no image is decoded twice. All cores decode, a few
    tasks ahead of the reader. Images whose number is not `wanted` are passed over.
    """
    ahead: deque[str] = deque()  # the splits of the images that are being decoded

    def images() -> Iterator[EncodedImage]:
        for number, (split, image) in enumerate(source.read(start), start):
            if wanted is None or wanted(number):
                ahead.append(split)
                yield image

    encoded = any(isinstance(split, EncodedSplit) for split in source.splits.values())
    # Starting processes pays off for many files, but not for arrays, which take longer to send than to scale.
    sharers = launch.processes_here()
    count = max(0, source.count - start) if encoded else 0
    for image, (pixels, measured) in measure_all(images(), count, shape, sharers):
        split = ahead.popleft()
        if isinstance(pixels, np.ndarray) and pixels.shape[2] != channels:
            pixels = f"{pixels.shape[2]} channels where the encoder reads {channels}"
        assert not isinstance(pixels, Oversized), "images are scaled to a shape"
        yield split, image, pixels, measured
