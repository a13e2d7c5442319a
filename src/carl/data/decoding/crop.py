"""Crops of encoded images, decoded and cut on all cores.

Threads do this, not processes: Pillow releases the interpreter while it decodes and resamples, so there is nothing to
start, feed or clean up. A crop depends only on the bytes and the box, so the number of threads does not change it.
"""

from __future__ import annotations

import io
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from carl import launch
from carl.data.decoding.decode import DecodeError, open_file, open_image, orientation, read_file, upright_rgb
from carl.data.packing.pixel_statistics import available_cores
from carl.errors import UserError

_QUARTER_TURNS = (5, 6, 7, 8)  # EXIF orientations that swap height and width


def pool() -> ThreadPoolExecutor:
    """The threads that decode for this process."""
    return _pool(os.getpid())


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """One pool per process, since threads do not survive a fork; torchrun's processes share the cores."""
    threads = max(1, available_cores() // launch.processes_here())
    return ThreadPoolExecutor(threads, thread_name_prefix=f"crops-{process}")


def upright_size(path: Path) -> tuple[int, int]:
    """Height and width of the upright image in a file, from its header."""
    try:
        with open_file(path) as file:
            return _size_of(file)
    except Exception as error:  # Pillow's plug-ins raise nearly anything on damaged files
        raise _no_longer_decoded(path, error) from error


def _size_of(file: BinaryIO) -> tuple[int, int]:
    with open_image(file) as image:
        turned = orientation(image) in _QUARTER_TURNS
        return (image.width, image.height) if turned else (image.height, image.width)


def crop_file(path: Path, boxes: np.ndarray, crops: list[np.ndarray], row: int) -> None:
    """Write the crops of one file into place `row` of each array of `crops`."""
    try:
        crop_encoded(read_file(path), boxes, crops, row)
    except DecodeError as error:
        raise _no_longer_decoded(path, error) from error


def _no_longer_decoded(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} could be decoded when it was packed but not now ({error}); restore it")


def crop_encoded(data: bytes, boxes: np.ndarray, crops: list[np.ndarray], row: int) -> None:
    """Write the crops of one image, along `boxes` (V, 4), into place `row` of each of the V arrays of `crops`."""
    try:
        image = open_image(io.BytesIO(data))
        full_sides = sum(image.size)
        _reduce(image, min(float(box[2:].min()) / crop.shape[1] for box, crop in zip(boxes, crops, strict=True)))
        scale = sum(image.size) / full_sides  # from the full image to the reduced one
        image = upright_rgb(image)
        for box, crop in zip(boxes, crops, strict=True):
            crop[row] = _crop(image, box * scale, crop.shape[1])
    except Exception as error:  # Pillow's plug-ins raise nearly anything on damaged files
        raise DecodeError(f"{error or type(error).__name__}".splitlines()[0]) from error


def encoded_size(data: bytes) -> tuple[int, int]:
    """Height and width of the upright image, from the header."""
    try:
        height, width = _size_of(io.BytesIO(data))
    except Exception as error:  # see above
        raise DecodeError(f"{error or type(error).__name__}".splitlines()[0]) from error
    if not 0 < height * width <= (Image.MAX_IMAGE_PIXELS or height * width):
        raise DecodeError(f"{width} x {height} pixels, and at most {Image.MAX_IMAGE_PIXELS} are allowed")
    return height, width


def _reduce(image: Image.Image, factor: float) -> None:
    """Have a JPEG decoded at a lower resolution, but at least at 1/`factor` of the full one."""
    if image.format == "JPEG" and factor >= 2:
        image.draft(None, (int(image.width / factor), int(image.height / factor)))


def _crop(image: Image.Image, box: np.ndarray, side: int) -> np.ndarray:
    top, left, height, width = (float(value) for value in box)
    right, bottom = min(left + width, image.width), min(top + height, image.height)
    left, top = max(0.0, min(left, right - 1)), max(0.0, min(top, bottom - 1))
    return np.asarray(image.resize((side, side), Image.Resampling.BILINEAR, (left, top, right, bottom)))
