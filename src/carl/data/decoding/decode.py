"""From the bytes of an image file to pixels (H, W, C) uint8, upright and in RGB.

Grey, palette, CMYK and 16-bit images become RGB with 8 bits. Transparent pixels are drawn on white. Of an animation,
the first frame is used. TIFFs with bands that are not colours keep all their channels.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from carl.data.decoding.tiff import block_bytes, has_other_bands, is_tiff, read_bands
from carl.data.listing import LARGEST_IMAGE, Content, Unusable
from carl.defaults import AS_IS_SIDE
from carl.files import open_regular
from carl.framing import Framing
from carl.quality import Picture, Value, measure

# Pillow recognises formats by their content and knows many more, some of which run other programs: it would hand
# PostScript named .jpg to Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF")

STRIP = 2**22  # pixels of a large image that are changed at once
# Bytes per pixel that Pillow needs to decode a format (measured, Pillow 13.0.0), where they are more than the 8 of
# others. An image of a costly format may have fewer pixels, so that all stay below the same memory.
_COSTLY = {"WEBP": 16, "JPEG2000": 24, "AVIF": 20}
_COST = 8

_ORIENTATION = 0x0112
_TURNS = {  # by the value of the EXIF orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class DecodeError(Exception):
    """Why one image cannot be used."""


class OversizedError(Exception):
    """The image is too large to be packed as it is."""


@contextmanager
def strict_decoding() -> Iterator[None]:
    """Refuse decompression bombs, and silence warnings about files that are merely untidy.

    Warning filters belong to the process, not to a thread, so this is entered once, around the pool of decoders.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def open_image(file: BinaryIO) -> Image.Image:
    """An image of one of FORMATS, with its header read and its size checked before any memory is taken for pixels."""
    _check_size("WEBP", _webp_size(file))  # Pillow takes memory for the pixels of a WebP when it opens it
    image = Image.open(file, formats=_installed_formats())
    _check_size(image.format or "", image.size)
    allowed = Image.MAX_IMAGE_PIXELS
    if allowed is None:  # lifted by the user's own program
        return image
    if image.format == "TIFF" and block_bytes(image.tag_v2, image.size) > allowed * _COST // 2:  # type: ignore[attr-defined]
        raise DecodeError("a TIFF in strips or tiles that are too large; save it in smaller ones")
    return image


def _check_size(form: str, size: tuple[int, int]) -> None:
    """Refuse more pixels than fit into memory when an image of this format is decoded."""
    if Image.MAX_IMAGE_PIXELS is None:
        return
    most = Image.MAX_IMAGE_PIXELS * _COST // max(_COST, _COSTLY.get(form, 0))
    if size[0] * size[1] > most:
        raise DecodeError(f"{size[0]} x {size[1]} pixels, more than the {most:,} that are allowed in a {form} file")


def _webp_size(file: BinaryIO) -> tuple[int, int]:
    """The width and height that the header of a WebP states; (0, 0) for any other file."""
    head = file.read(30)
    file.seek(0)
    if head[:4] != b"RIFF" or head[8:12] != b"WEBP" or len(head) < 30:
        return 0, 0
    if head[12:16] == b"VP8X":
        return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
    if head[12:16] == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF


@cache
def _installed_formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)  # AVIF is not in every Pillow


Fitted = tuple[int, int] | Framing  # height and width to fit images to, or how
Shape = Fitted | None  # None: as they are


def decode(content: Content, shape: Shape) -> np.ndarray:
    """The image as it is (if no side is longer than AS_IS_SIDE), or cropped and scaled to `shape` (height, width)."""
    return _decoded(content, shape, None)


def decode_measured(content: Content, shape: Fitted) -> tuple[np.ndarray, dict[str, Value]]:
    """The same, and what quality checks measure of the image before it is cropped and scaled."""
    seen: list[dict[str, Value]] = []
    pixels = _decoded(content, shape, lambda picture: seen.append(measure(picture)))
    return pixels, seen[0]


Look = Callable[[Picture], None]


def _decoded(content: Content, shape: Shape, look: Look | None) -> np.ndarray:
    framing = Framing(*shape) if isinstance(shape, tuple) else shape
    if isinstance(content, Unusable):
        raise DecodeError(content.reason)
    if isinstance(content, np.ndarray):
        return _fit_bands(content, framing, look)
    try:
        data = read_file(content) if isinstance(content, Path) else content
        if not data:
            raise DecodeError("the file is empty")
        return _decode_bytes(data, framing, look)
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
    """The content of a regular file; a DecodeError says why it cannot be read."""
    with open_file(path) as file:
        try:
            return file.read()
        except OSError as error:
            raise DecodeError(error.strerror or str(error)) from error


def open_file(path: Path) -> BinaryIO:
    """An open regular file of at most LARGEST_IMAGE bytes; a DecodeError says why it cannot be opened."""
    try:
        file = open_regular(path)
    except FileNotFoundError as error:
        raise DecodeError("a link to nothing" if path.is_symlink() else "the file is gone") from error
    except OSError as error:
        raise DecodeError(error.strerror or str(error)) from error
    size = os.fstat(file.fileno()).st_size
    if size <= LARGEST_IMAGE:
        return file
    file.close()
    raise DecodeError(f"a file of {size:,} bytes, more than the {LARGEST_IMAGE:,} that are read")


def _decode_bytes(data: bytes, framing: Framing | None, look: Look | None) -> np.ndarray:
    try:
        image = open_image(io.BytesIO(data))
    except UnidentifiedImageError:
        if not is_tiff(data):
            raise
        return _fit_bands(read_bands(data), framing, look)
    if image.format == "TIFF" and has_other_bands(image.tag_v2):  # type: ignore[attr-defined]
        return _fit_bands(read_bands(data), framing, look)
    if 0 in image.size:
        raise DecodeError(f"the image is {image.width} x {image.height} pixels")
    size = image.size
    if framing is None:
        _check_as_is(image.height, image.width)
    elif image.format == "JPEG":
        # Decodes at 1/2, 1/4 or 1/8, but at least at twice the wanted size, so that the resampling decides the look.
        image.draft(None, (2 * framing.source_side, 2 * framing.source_side))
    drafted = image.size
    image = upright_rgb(image)
    if look is not None:
        width, height = size if image.size == drafted else size[::-1]  # turned on its side
        # The pixels of a JPEG that was not decoded at its own size do not tell everything about it.
        digest = _digest([data]) if drafted != size else _digest(_strips(image))
        look(Picture(image, width, height, digest))
    return np.asarray(image if framing is None else _fit(image, framing))


def _digest(parts: Iterable[bytes]) -> str:
    """32 hexadecimal digits that no other content has."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _strips(image: Image.Image) -> Iterator[bytes]:
    """The size and the pixels of an image, some rows at a time to spare memory."""
    yield repr(image.size).encode()
    rows = max(1, STRIP // image.width)
    for top in range(0, image.height, rows):
        yield image.crop((0, top, image.width, min(top + rows, image.height))).tobytes()


def pixels_of(image: Image.Image) -> np.ndarray:
    """An open image of any mode as (H, W, 3) uint8, upright."""
    return np.array(upright_rgb(image, still_used=True))


def upright_rgb(image: Image.Image, still_used: bool = False) -> Image.Image:
    """The image in RGB, turned as its EXIF data say. Unless it is still used, its own pixels are let go."""
    turn = _turn_of(image)
    rgb = _as_rgb(image)
    if turn is None:
        return rgb
    if rgb is not image and not still_used:
        image.close()  # three copies of a large image would be more than the memory that is promised
    return rgb.transpose(turn)


def _turn_of(image: Image.Image) -> Image.Transpose | None:
    if image.format == "PNG" and "exif" not in image.info and not image.info.get("Raw profile type exif"):
        return None  # saves a quarter of the time for most PNGs
    image.load()
    return _TURNS.get(orientation(image))


def orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8; 1, which is upright, if the EXIF data is missing or damaged.

    Pillow turns TIFFs by itself.
    """
    if image.format == "TIFF":
        return 1
    try:
        found = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged EXIF data raises nearly anything, and says nothing about the pixels
        return 1
    return found if found in _TURNS else 1


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I") or image.mode == "F":
        return _by_strips(image, _eight_bits)
    if image.mode in ("LA", "PA", "La", "RGBA", "RGBa") or "transparency" in image.info:
        return _by_strips(image, _on_white)
    return image.convert("RGB")


def _by_strips(image: Image.Image, change: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """The image changed to RGB, strip by strip if it is large: at once it would take several times its memory."""
    rows = max(1, STRIP // image.width)
    if image.height <= rows:
        return change(image)
    whole = Image.new("RGB", image.size)
    for top in range(0, image.height, rows):
        box = (0, top, image.width, min(top + rows, image.height))
        whole.paste(change(image.crop(box)), box)
    return whole


def _on_white(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """Wide integers from 0 to 65535, or floats from 0 to 1, with 8 bits."""
    values = np.asarray(image)
    low, high = values.min(), values.max()
    top = 1 if values.dtype.kind == "f" else 65535
    if not (low >= 0 and high <= top):
        raise DecodeError(f"values from {low:g} to {high:g}, where 0 to {top} are expected")
    grey = np.stack([np.rint(row * (255 / top)).astype(np.uint8) for row in values])  # row by row, to spare memory
    return Image.fromarray(grey).convert("RGB")


def _fit(image: Image.Image, framing: Framing) -> Image.Image:
    """Scale and crop in one antialiased resampling, or two steps where the result is larger than the scaled image."""
    size, method = (framing.width, framing.height), Image.Resampling[framing.interpolation.upper()]
    if framing.scaled is None and image.size == size:
        return image
    if framing.fit != "pad":
        return image.resize(size, method, framing.box(image.height, image.width))
    height, width = framing.scaled_size(image.height, image.width)
    fill = framing.fill if len(framing.fill) == len(image.getbands()) else 0
    canvas = Image.new(image.mode, size, fill)
    places = [
        (to - of) // 2 if of <= to else -round((of - to) / 2) for of, to in zip((width, height), size, strict=True)
    ]
    canvas.paste(image.resize((width, height), method), (places[0], places[1]))
    return canvas


def _check_as_is(height: int, width: int) -> None:
    if max(height, width) > AS_IS_SIDE:
        raise OversizedError


def _fit_bands(pixels: np.ndarray, framing: Framing | None, look: Look | None = None) -> np.ndarray:
    if look is not None and pixels.size:
        shown = Image.fromarray(np.ascontiguousarray(shown_bands(pixels)))
        digest = _digest([repr(pixels.shape).encode(), pixels.tobytes()])
        look(Picture(shown, pixels.shape[1], pixels.shape[0], digest))
    if framing is None:
        _check_as_is(*pixels.shape[:2])
        return pixels
    if framing.scaled is None and pixels.shape[:2] == framing.shape:
        return pixels
    fills = [(value,) for value in framing.fill] if len(framing.fill) == pixels.shape[2] else [()] * pixels.shape[2]
    framings = [dataclasses.replace(framing, fill=fill) for fill in fills]
    bands = [
        np.asarray(_fit(Image.fromarray(band), own))
        for band, own in zip(np.moveaxis(pixels, 2, 0), framings, strict=True)
    ]
    return np.stack(bands, axis=2)


def shown_bands(pixels: np.ndarray) -> np.ndarray:
    """Three bands to look at: the first three, or the only one three times."""
    return pixels[..., :3] if pixels.shape[-1] >= 3 else np.repeat(pixels[..., :1], 3, axis=-1)
