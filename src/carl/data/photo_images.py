"""Large photos of varied size, from which training cuts its views at full resolution when a batch needs them.

Everything that needs whole images (evaluation, galleries, statistics) still uses the packed data set, which is small
and equal-sized. The files are kept beside it in the same order.

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
from carl.data.decoding.file_arrays import open_array
from carl.data.listing import EncodedSplit, Listing
from carl.errors import UserError
from carl.files import atomic_writer
from carl.terminal import Progress
from carl.user_paths import cache_folder

# Views are cut from the photos if their side is at least this many times that of the packed images. A crop with 8% of
# the area of a packed image is enlarged 3.5 times; a photo of twice the side gives it twice the detail. Smaller photos
# give too little more to be worth decoding in every epoch.
MINIMUM_GAIN = 2.0
_LONGEST_SIDE = 2**31 - 1  # that a format can state


@dataclass(frozen=True, eq=False)
class PhotoImages:
    """Image files of any size, and crops of them."""

    folder: Path
    names: tuple[str, ...]  # file names, relative to the folder
    sizes: np.ndarray  # (N, 2) int64: height and width of the upright image

    def __len__(self) -> int:
        return len(self.names)

    @property
    def usual_side(self) -> int:
        """The median of the shorter sides."""
        return int(np.median(self.sizes.min(axis=1)))

    def subset(self, indices: np.ndarray) -> PhotoImages:
        return PhotoImages(self.folder, tuple(self.names[i] for i in indices), self.sizes[indices])

    def crop(self, indices: np.ndarray, boxes: np.ndarray, sides: Sequence[int]) -> list[np.ndarray]:
        """Crops of the images at `indices`: one array (B, S, S, 3) uint8 for each of the V `sides`.

        `boxes` is (B, V, 4): top, left, height and width of each view, in pixels of the upright image. Each crop is
        resized with antialiased bilinear weights. An image is decoded once for all its views. A JPEG is decoded at a
        half, a quarter or an eighth of its resolution if every crop is still as large as its view then.
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
                task.cancel()  # after an error the rest is not needed
        for task in tasks:
            if not task.cancelled():
                task.result()
        return crops


def check_of_photos(listing: Listing) -> None:
    """Refuse a source that is not a folder of files, before anything is packed."""
    if not _is_of_files(listing):
        raise _not_photos(listing.name)


def with_photos(dataset: Dataset, listing: Listing, forced: bool, progress: Progress) -> Dataset:
    """The data set with its files beside it, if training is to cut its views from them.

    Unless it is `forced`, that is the case if images were scaled down to be packed, and their usual side is at least
    MINIMUM_GAIN times the packed side.
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
        f"training cuts its views from the files (their shorter side is usually {usual} pixels); the packed images are "
        "only for evaluation; --set data.views_from=packed is faster but sees less detail"
    )
    return dataclasses.replace(opened, notes=(*dataset.notes, note))


def _is_of_files(listing: Listing) -> bool:
    return all(isinstance(split, EncodedSplit) and split.folder is not None for split in listing.splits.values())


def _not_photos(name: str) -> UserError:
    return UserError(
        f"data.views_from='photos' needs a folder of colour images, and {name} is something else; use 'packed'"
    )


def _kept_sizes(kept: Path, count: int) -> np.ndarray | None:
    """The sizes of `count` images from the cache; None if they are missing, or if no images can have these sizes."""
    try:
        sizes = np.asarray(open_array(kept))
    except Exception:  # a damaged header raises nearly anything
        return None
    if sizes.shape != (count, 2) or sizes.dtype != np.int64 or sizes.min() < 1 or sizes.max() > _LONGEST_SIDE:
        return None
    return sizes


def _upright_sizes(photos: PhotoImages, key: str, progress: Progress) -> np.ndarray:
    """(N, 2) height and width, read from the headers and kept in the cache."""
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
