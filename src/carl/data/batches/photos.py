"""The second road, for photos of varied and large size: decode and crop on all cores when a batch needs them.

The packed data set, small and equal-sized, stays what everything looks at that wants whole images (evaluation,
galleries, statistics). Beside it lie the files in the same order, from which training cuts its views at full
resolution. Everything after the crop is the batched pipeline that packed images go through.

Threads, not processes: Pillow lets go of the interpreter while it decodes and resamples, so there is nothing to
start, to feed or to clean up. A crop is a function of the file and the box alone: no number of threads changes it.

Shapes: B images, V views, S side of a view.
"""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from PIL import Image

from carl.data.dataset import Dataset
from carl.data.decoding.decode import DecodeError, open_file, open_image, read_file, strict_decoding, upright_rgb
from carl.data.listing import EncodedSplit, Listing, Progress
from carl.data.packing.cache import cache_folder
from carl.data.packing.pixel_statistics import available_cores
from carl.errors import UserError
from carl.files import atomic_writer

# Photos at least so many times the view's side take this road. Packed at the view's side, a crop of 8% of the area
# is enlarged 3.5 times; a photo of twice the side has twice the detail to give, a smaller one too little to decode for.
MINIMUM_GAIN = 2.0

_ORIENTATION, _QUARTER_TURNS = 0x0112, (5, 6, 7, 8)


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
            pool().submit(_crop_file, self.folder / self.names[index], boxes[row], crops, row)
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


def with_photos(
    dataset: Dataset, listing: Listing, road: Literal["auto", "packed", "photos"], progress: Progress
) -> Dataset:
    """The data set with its files beside it, if that is the road of its training images.

    `auto` takes it where images were scaled down to be packed and are usually MINIMUM_GAIN times the packed side.
    """
    possible = _is_of_files(listing) and dataset.train.images.channels == 3
    if road == "photos" and not possible:
        raise UserError(
            f"data.road='photos' cuts views from a folder of colour images, and {dataset.name} is something else; "
            "use packed"
        )
    if road == "packed" or not possible or (road == "auto" and not dataset.fitted):
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
    if road == "auto" and usual < MINIMUM_GAIN * packed:
        return dataset
    note = (
        f"training cuts its views from the files (usually {usual} pixels on the shorter side); the packed images are "
        "for evaluation alone; data.road=packed is faster and sees less detail"
    )
    return dataclasses.replace(opened, notes=(*dataset.notes, note))


def _is_of_files(listing: Listing) -> bool:
    return all(isinstance(split, EncodedSplit) and split.folder is not None for split in listing.splits.values())


def pool() -> ThreadPoolExecutor:
    """The threads of this process that decode."""
    return _pool(os.getpid())


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """One pool a process, since threads do not survive a fork; torchrun's processes share the cores."""
    threads = max(1, available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return ThreadPoolExecutor(threads, thread_name_prefix=f"photos-{process}")


def _upright_sizes(photos: PhotoImages, key: str, progress: Progress) -> np.ndarray:
    """(N, 2) height and width from the headers, kept in the cache."""
    kept = cache_folder() / "photos" / f"{key}.npy"
    with suppress(OSError, ValueError, EOFError, SyntaxError):  # else the headers are read
        return np.asarray(np.load(kept, allow_pickle=False)).reshape(len(photos), 2)
    sizes = np.empty((len(photos), 2), np.int64)
    paths = (photos.folder / name for name in photos.names)
    with strict_decoding():
        for index, size in enumerate(pool().map(_upright_size, paths)):
            sizes[index] = size
            progress("reading sizes", index + 1, len(photos))
    with suppress(OSError), atomic_writer(kept) as file:  # if it fails, the headers are read again next time
        np.save(file, sizes)
    return sizes


def _upright_size(path: Path) -> tuple[int, int]:
    try:
        with open_file(path) as file:
            return _upright_size_of(file)
    except Exception as error:  # Pillow's plug-ins raise nearly anything on damaged files
        raise UserError(f"{path} could be decoded when it was packed but not now ({error}); restore it") from error


def _upright_size_of(file: BinaryIO) -> tuple[int, int]:
    with open_image(file) as image:
        turned = image.getexif().get(_ORIENTATION) in _QUARTER_TURNS
        return (image.width, image.height) if turned else (image.height, image.width)


def _crop_file(path: Path, boxes: np.ndarray, crops: list[np.ndarray], row: int) -> None:
    """Write the crops of one file into place `row` of each array of `crops`."""
    try:
        crop_encoded(read_file(path), boxes, crops, row)
    except DecodeError as error:
        raise UserError(f"{path} could be decoded when it was packed but not now ({error}); restore it") from error


def crop_encoded(data: bytes, boxes: np.ndarray, crops: list[np.ndarray], row: int) -> None:
    """Write the crops of one image into place `row` of each array of `crops`, as `PhotoImages.crop` does."""
    try:
        image = open_image(io.BytesIO(data))
        full_sides = sum(image.size)
        _reduce(image, min(float(box[2:].min()) / crop.shape[1] for box, crop in zip(boxes, crops, strict=True)))
        scale = sum(image.size) / full_sides  # of the reduced image to the full one
        image = upright_rgb(image)
        for box, crop in zip(boxes, crops, strict=True):
            crop[row] = _crop(image, box * scale, crop.shape[1])
    except Exception as error:  # Pillow's plug-ins raise nearly anything on damaged files
        raise DecodeError(f"{error or type(error).__name__}".splitlines()[0]) from error


def encoded_size(data: bytes) -> tuple[int, int]:
    """Height and width of the upright image, from the header."""
    try:
        height, width = _upright_size_of(io.BytesIO(data))
    except Exception as error:  # as above
        raise DecodeError(f"{error or type(error).__name__}".splitlines()[0]) from error
    if not 0 < height * width <= (Image.MAX_IMAGE_PIXELS or height * width):
        raise DecodeError(f"{width} x {height} pixels, and at most {Image.MAX_IMAGE_PIXELS} are allowed")
    return height, width


def _reduce(image: Image.Image, factor: float) -> None:
    """Have a JPEG decoded at the lowest resolution that is not more than `factor` below the full one."""
    if image.format == "JPEG" and factor >= 2:
        image.draft(None, (int(image.width / factor), int(image.height / factor)))


def _crop(image: Image.Image, box: np.ndarray, side: int) -> np.ndarray:
    top, left, height, width = (float(value) for value in box)
    right, bottom = min(left + width, image.width), min(top + height, image.height)
    left, top = max(0.0, min(left, right - 1)), max(0.0, min(top, bottom - 1))
    return np.asarray(image.resize((side, side), Image.Resampling.BILINEAR, (left, top, right, bottom)))
