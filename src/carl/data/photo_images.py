"""Photos of varied and large size, from which training cuts its views at full resolution when a batch needs them.

The packed data set, small and equal-sized, stays what everything looks at that wants whole images (evaluation,
galleries, statistics). Beside it lie the files in the same order.

Shapes: B images, V views, S side of a view.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from carl.data.dataset import Dataset
from carl.data.decoding.crop import crop_file, pool, upright_size
from carl.data.decoding.decode import strict_decoding
from carl.data.decoding.regular_files import map_array
from carl.data.listing import EncodedSplit, Listing, Progress
from carl.data.packing.cache import cache_folder
from carl.errors import UserError
from carl.files import atomic_writer

# Views are cut from photos whose side is at least so many times the view's. Packed at the view's side, a crop of 8% of
# the area is enlarged 3.5 times; a photo of twice the side has twice the detail to give, a smaller one too little to
# decode for.
MINIMUM_GAIN = 2.0
_LONGEST_SIDE = 2**31 - 1  # that a format can state


@dataclass(frozen=True, eq=False)
class PhotoImages:
    """Image files of any size, and crops of them."""

    folder: Path
    names: tuple[str, ...]  # of the files, relative to the folder
    sizes: np.ndarray  # (N, 2) int64: height and width of the upright image

    def __len__(self) -> int:
        return len(self.names)

    @property
    def usual_side(self) -> int:
        """Median of the shorter sides."""
        return int(np.median(self.sizes.min(axis=1)))

    def subset(self, indices: np.ndarray) -> PhotoImages:
        return PhotoImages(self.folder, tuple(self.names[i] for i in indices), self.sizes[indices])

    def crop(self, indices: np.ndarray, boxes: np.ndarray, sides: Sequence[int]) -> list[np.ndarray]:
        """Crops of the images at `indices`, one array (B, S, S, 3) uint8 for each of the V `sides`.

        `boxes` is (B, V, 4): top, left, height and width of each view in pixels of the upright image. Each crop is
        resized with antialiased bilinear weights. An image is decoded once for all its views, and at half, a
        quarter or an eighth of its resolution where every crop still has its view's side then (JPEG only).
        """
        if boxes.shape != (len(indices), len(sides), 4):
            raise ValueError(f"boxes of shape {boxes.shape} for {len(indices)} images and {len(sides)} views")
        crops = [np.empty((len(indices), side, side, 3), np.uint8) for side in sides]
        tasks = [
            pool().submit(crop_file, self.folder / self.names[index], boxes[row], crops, row)
            for row, index in enumerate(indices)
        ]
        try:
            wait(tasks, return_when=FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()  # after an error the rest is not worth its time
        for task in tasks:
            if not task.cancelled():
                task.result()
        return crops


def check_of_photos(listing: Listing) -> None:
    """Refuse what is not a folder of files, before anything of it is packed."""
    if not _is_of_files(listing):
        raise _not_photos(listing.name)


def with_photos(dataset: Dataset, listing: Listing, forced: bool, progress: Progress) -> Dataset:
    """The data set with its files beside it, if training is to cut its views from them.

    Unless `forced`, that is where images were scaled down to be packed and are usually MINIMUM_GAIN times the packed
    side.
    """
    possible = _is_of_files(listing) and dataset.train.images.channels == 3
    if forced and not possible:
        raise _not_photos(dataset.name)
    if not possible or not (forced or dataset.fitted):
        return dataset
    splits = dict(dataset.splits)
    for name in {"train", "unlabeled"} & splits.keys():
        split, listed = splits[name], listing.splits[name]
        assert isinstance(listed, EncodedSplit)
        assert listed.folder is not None
        assert split.names is not None
        photos = PhotoImages(listed.folder, split.names, np.empty((0, 2), np.int64))
        photos = dataclasses.replace(photos, sizes=_upright_sizes(photos, f"{listing.key}-{name}", progress))
        splits[name] = dataclasses.replace(split, photos=photos)
    opened = dataclasses.replace(dataset, splits=splits)
    assert opened.pretraining.photos is not None
    usual, packed = opened.pretraining.photos.usual_side, dataset.train.images.height
    if not forced and usual < MINIMUM_GAIN * packed:
        return dataset
    note = (
        f"training cuts its views from the files (usually {usual} pixels on the shorter side); the packed images are "
        "for evaluation alone; data.views_from=packed is faster and sees less detail"
    )
    return dataclasses.replace(opened, notes=(*dataset.notes, note))


def _is_of_files(listing: Listing) -> bool:
    return all(isinstance(split, EncodedSplit) and split.folder is not None for split in listing.splits.values())


def _not_photos(name: str) -> UserError:
    return UserError(
        f"data.views_from='photos' cuts views from a folder of colour images, and {name} is something else; use packed"
    )


def _kept_sizes(kept: Path, count: int) -> np.ndarray | None:
    """Sizes from the cache; None if there are none, or none that `count` images can have: files may be damaged."""
    try:
        sizes = np.array(map_array(kept))
    except Exception:  # a damaged header raises nearly anything
        return None
    if sizes.shape != (count, 2) or sizes.dtype != np.int64 or sizes.min() < 1 or sizes.max() > _LONGEST_SIDE:
        return None
    return sizes


def _upright_sizes(photos: PhotoImages, key: str, progress: Progress) -> np.ndarray:
    """(N, 2) height and width from the headers, kept in the cache."""
    kept = cache_folder() / "photos" / f"{key}.npy"
    known = _kept_sizes(kept, len(photos))
    if known is not None:
        return known
    sizes = np.empty((len(photos), 2), np.int64)
    paths = (photos.folder / name for name in photos.names)
    with strict_decoding():
        for index, size in enumerate(pool().map(upright_size, paths)):
            sizes[index] = size
            progress("reading sizes", index + 1, len(photos))
    with suppress(OSError), atomic_writer(kept) as file:  # if it fails, the headers are read again next time
        np.save(file, sizes)
    return sizes
