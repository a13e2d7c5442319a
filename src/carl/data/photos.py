"""The second road, for photos of varied and large size: decode and crop on all cores when a batch needs them.

`open_photos` gives the packed data set, small and equal-sized, for all that looks at whole images (evaluation,
galleries, statistics), and beside it the files in the same order, from which views are cut at full resolution.
Everything after the crop is the batched pipeline that packed images go through.

Threads, not processes: Pillow lets go of the interpreter while it decodes and resamples. `B` images, `V` views.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from carl.data.decode import DecodeError, read_file, strict_decoding, upright_rgb
from carl.data.folder import split_folders
from carl.data.images import Dataset
from carl.data.listing import Progress, files_key, silent
from carl.data.sources import open_dataset
from carl.data.statistics import available_cores
from carl.data.store import cache_folder
from carl.errors import UserError
from carl.files import atomic_writer

_ORIENTATION, _QUARTER_TURNS = 0x0112, (5, 6, 7, 8)


@dataclass(frozen=True, eq=False)
class PhotoImages:
    """Image files of any size, and crops of them."""

    paths: tuple[Path, ...]
    sizes: np.ndarray  # (N, 2) int64: height and width of the upright image

    def __len__(self) -> int:
        return len(self.paths)

    def crop(self, indices: np.ndarray, boxes: np.ndarray, size: int) -> np.ndarray:
        """Crops of the images at `indices`, each resized to a square with antialiased bilinear weights.

        `boxes` is (B, V, 4): top, left, height and width of each view in pixels of the upright image. The result
        is (B, V, size, size, 3) uint8. An image is decoded once for all its views, and at half, a quarter or an
        eighth of its resolution where the smallest crop still has `size` pixels then (JPEG only).
        """
        return self.start_crop(indices, boxes, size)()

    def start_crop(self, indices: np.ndarray, boxes: np.ndarray, size: int) -> Callable[[], np.ndarray]:
        """The same in the background: returns at once, and the result is a function that waits for the crops."""
        if boxes.ndim != 3 or boxes.shape[0] != len(indices) or boxes.shape[2] != 4:
            raise ValueError(f"boxes of shape {boxes.shape} for {len(indices)} images; use (B, V, 4)")
        tasks = [
            _pool(os.getpid()).submit(_crop_file, self.paths[index], image_boxes, size)
            for index, image_boxes in zip(indices, boxes, strict=True)
        ]

        def wait() -> np.ndarray:
            return np.stack([task.result() for task in tasks])

        return wait


def open_photos(
    folder: str | Path,
    *,
    image_size: int | None = None,
    max_bad: int | None = None,
    progress: Progress | None = None,
) -> tuple[Dataset, PhotoImages]:
    """A folder as a packed data set, and as the photos of its pretraining split in the same order."""
    root = Path(folder).expanduser().absolute()
    if not root.is_dir():
        raise UserError(f"{folder} is not a folder; photos are cropped from a folder of image files")
    dataset = open_dataset(folder, image_size=image_size, max_bad=max_bad, progress=progress)
    folders, _ = split_folders(root)
    base = folders.get("unlabeled", folders["train"])
    names = dataset.pretraining.names
    if names is None or not (base / names[0]).exists():
        raise UserError(f"{folder} does not hold image files; photos are cropped from a folder of image files")
    paths = tuple(base / name for name in names)
    return dataset, PhotoImages(paths, _upright_sizes(paths, progress or silent))


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """One pool a process: threads do not survive a fork."""
    return ThreadPoolExecutor(available_cores(), thread_name_prefix=f"photos-{process}")


def _upright_sizes(paths: tuple[Path, ...], progress: Progress) -> np.ndarray:
    """(N, 2) height and width from the headers, kept in the cache."""
    kept = cache_folder() / "photos" / f"{files_key(paths)}.npy"
    with suppress(OSError, ValueError):  # else the headers are read
        return np.asarray(np.load(kept, allow_pickle=False)).reshape(len(paths), 2)
    sizes = np.empty((len(paths), 2), np.int64)
    with strict_decoding():
        for index, size in enumerate(_pool(os.getpid()).map(_upright_size, paths)):
            sizes[index] = size
            progress("reading sizes", index + 1, len(paths))
    with suppress(OSError), atomic_writer(kept) as file:  # if it fails, the headers are read again next time
        np.save(file, sizes)
    return sizes


def _upright_size(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        turned = image.getexif().get(_ORIENTATION) in _QUARTER_TURNS
        return (image.width, image.height) if turned else (image.height, image.width)


def _crop_file(path: Path, boxes: np.ndarray, size: int) -> np.ndarray:
    """(V, size, size, 3)."""
    try:
        image: Image.Image = Image.open(io.BytesIO(read_file(path)))
        full_sides = sum(image.size)
        _reduce(image, float(boxes[:, 2:].min()), size)
        scale = sum(image.size) / full_sides  # of the reduced image to the full one
        image = upright_rgb(image)
    except (DecodeError, OSError, ValueError, SyntaxError) as error:
        raise UserError(f"{path} could be decoded when it was packed but not now ({error}); restore it") from error
    return np.stack([_crop(image, box * scale, size) for box in boxes])


def _reduce(image: Image.Image, smallest_side: float, size: int) -> None:
    """Have a JPEG decoded at the lowest resolution that leaves `size` pixels in the smallest crop."""
    if image.format == "JPEG" and smallest_side >= 2 * size:
        factor = smallest_side / size
        image.draft(None, (int(image.width / factor), int(image.height / factor)))


def _crop(image: Image.Image, box: np.ndarray, size: int) -> np.ndarray:
    top, left, height, width = (float(value) for value in box)
    right, bottom = min(left + width, image.width), min(top + height, image.height)
    left, top = max(0.0, min(left, right - 1)), max(0.0, min(top, bottom - 1))
    crop = image.resize((size, size), Image.Resampling.BILINEAR, (left, top, right, bottom))
    return np.asarray(crop)
