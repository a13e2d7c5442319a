"""From the bytes of an image file to pixels (H, W, C) uint8, upright and in RGB.

Grey, palette, CMYK and 16-bit images become RGB with 8 bits; transparent pixels are composited on white; of an
animation the first frame is taken. TIFFs with bands that are not colours keep their channels.
"""

from __future__ import annotations

import io
import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from carl.data.decoding.tiff import has_other_bands, is_tiff, read_bands
from carl.data.listing import LARGEST_IMAGE, Content, Unusable

# Pillow tells formats by content and knows many more, some of which run other programs: PostScript named .jpg would be
# handed to Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF")

AS_IS_SIDE = 256  # pixels; larger images are only decoded to be scaled, since thousands of them wait in memory
_ORIENTATION = 0x0112
_STRIP = 2**22  # pixels of a large image that are changed at once


class DecodeError(Exception):
    """Why one image cannot be used."""


class OversizedError(Exception):
    """The image is too large to be packed as it is."""


@contextmanager
def strict_decoding() -> Iterator[None]:
    """Make decompression bombs errors, and silence Pillow on files that are merely untidy.

    Warning filters belong to the process, not to a thread: enter this once, around the pool of decoders.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def open_image(file: BinaryIO) -> Image.Image:
    """An image of one of FORMATS, its header read."""
    return Image.open(file, formats=_installed_formats())


@cache
def _installed_formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)  # AVIF is not in every Pillow


def decode(content: Content, shape: tuple[int, int] | None) -> np.ndarray:
    """The image as it is (if no side is longer than AS_IS_SIDE), or cut and scaled to `shape` (height, width)."""
    if isinstance(content, Unusable):
        raise DecodeError(content.reason)
    if isinstance(content, np.ndarray):
        return _fit_bands(content, shape)
    try:
        data = read_file(content) if isinstance(content, Path) else content
        if not data:
            raise DecodeError("the file is empty")
        return _decode_bytes(data, shape)
    except (DecodeError, OversizedError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DecodeError(f"more pixels than the {Image.MAX_IMAGE_PIXELS:,} that are allowed") from error
    except UnidentifiedImageError as error:
        raise DecodeError("not an image in a known format") from error
    except Exception as error:  # Pillow's plug-ins raise nearly anything on damaged files
        raise DecodeError(f"{error or type(error).__name__}".splitlines()[0]) from error


def image_size(content: Content) -> tuple[int, int] | None:
    """(height, width) from the header alone, before any rotation; None if it cannot be read."""
    if isinstance(content, np.ndarray):
        return content.shape[0], content.shape[1]
    if isinstance(content, Unusable):
        return None
    try:
        opened = open_file(content) if isinstance(content, Path) else io.BytesIO(content)
        with opened as file, open_image(file) as image:
            return image.height, image.width
    except Exception:  # why it cannot be read is said when it is decoded
        return None


def read_file(path: Path) -> bytes:
    """The content of a regular file, or why there is none."""
    with open_file(path) as file:
        try:
            return file.read()
        except OSError as error:
            raise DecodeError(error.strerror or str(error)) from error


def open_file(path: Path) -> BinaryIO:
    """A regular file of at most LARGEST_IMAGE bytes, or why it is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError as error:
        raise DecodeError("a link to nothing" if path.is_symlink() else "the file is gone") from error
    except OSError as error:
        raise DecodeError(error.strerror or str(error)) from error
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size <= LARGEST_IMAGE:
        return open(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISREG(status.st_mode):
        raise DecodeError(f"a file of {status.st_size:,} bytes, more than the {LARGEST_IMAGE:,} that are read")
    raise DecodeError("not a regular file")  # reading a pipe would wait for ever


def _decode_bytes(data: bytes, shape: tuple[int, int] | None) -> np.ndarray:
    try:
        image = open_image(io.BytesIO(data))
    except UnidentifiedImageError:
        if not is_tiff(data):
            raise
        return _fit_bands(read_bands(data), shape)
    if image.format == "TIFF" and has_other_bands(image.tag_v2):  # type: ignore[attr-defined]
        return _fit_bands(read_bands(data), shape)
    if 0 in image.size:
        raise DecodeError(f"the image is {image.width} x {image.height} pixels")
    if shape is None:
        _check_as_is(image.height, image.width)
    elif image.format == "JPEG":
        # Decodes at 1/2, 1/4 or 1/8; twice the size wanted remains, so that the resampling decides the look.
        image.draft(None, (2 * max(shape), 2 * max(shape)))
    image = upright_rgb(image)
    return np.asarray(image if shape is None else _fit(image, shape))


def pixels_of(image: Image.Image) -> np.ndarray:
    """An open image of any mode as (H, W, 3) uint8, upright."""
    return np.array(upright_rgb(image))


def upright_rgb(image: Image.Image) -> Image.Image:
    return _as_rgb(_upright(image))


def _upright(image: Image.Image) -> Image.Image:
    if image.format == "PNG" and "exif" not in image.info and not image.info.get("Raw profile type exif"):
        return image  # spares most PNGs a quarter of their time
    image.load()
    if image.getexif().get(_ORIENTATION, 1) == 1:
        return image  # of which exif_transpose would make a copy
    return ImageOps.exif_transpose(image)


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_eight_bits(np.asarray(image))).convert("RGB")
    if image.mode in ("LA", "PA", "La", "RGBA", "RGBa") or "transparency" in image.info:
        return _on_white(image)
    return image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    """Composited on white, a large image in strips: at once it would take four times its memory more."""
    rows = max(1, _STRIP // image.width)
    if image.height <= rows:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    whole = Image.new("RGB", image.size)
    for top in range(0, image.height, rows):
        box = (0, top, image.width, min(top + rows, image.height))
        whole.paste(_on_white(image.crop(box)), box)
    return whole


def _eight_bits(values: np.ndarray) -> np.ndarray:
    """Wide integers from 0 to 65535, or floats from 0 to 1, as uint8."""
    low, high = values.min(), values.max()
    top = 1 if values.dtype.kind == "f" else 65535
    if not (low >= 0 and high <= top):
        raise DecodeError(f"values from {low:g} to {high:g} where 0 to {top} are expected")
    return np.stack([np.rint(row * (255 / top)).astype(np.uint8) for row in values])  # floats of all take 16 times more


def _fit(image: Image.Image, shape: tuple[int, int]) -> Image.Image:
    """Scale so that `shape` is just covered (antialiased) and cut the middle out, in one resampling."""
    height, width = shape
    if image.size == (width, height):
        return image
    scale = min(image.width / width, image.height / height)  # source pixels a target pixel
    # Rounding can leave a hair less than nothing, as for 47 pixels scaled to 46, which Pillow refuses.
    left, top = max(0.0, image.width - scale * width) / 2, max(0.0, image.height - scale * height) / 2
    box = (left, top, image.width - left, image.height - top)
    return image.resize((width, height), Image.Resampling.BICUBIC, box)


def _check_as_is(height: int, width: int) -> None:
    if max(height, width) > AS_IS_SIDE:
        raise OversizedError


def _fit_bands(pixels: np.ndarray, shape: tuple[int, int] | None) -> np.ndarray:
    if shape is None:
        _check_as_is(*pixels.shape[:2])
        return pixels
    if pixels.shape[:2] == shape:
        return pixels
    bands = [np.asarray(_fit(Image.fromarray(band), shape)) for band in np.moveaxis(pixels, 2, 0)]
    return np.stack(bands, axis=2)
