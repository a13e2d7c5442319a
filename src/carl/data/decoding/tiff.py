"""A small reader for TIFFs with any number of bands, which Pillow refuses because it only knows colours.

Reads the first image: 8- or 16-bit unsigned samples in strips or tiles, interleaved or in planes, uncompressed
or deflated, with or without horizontal differencing. TIFF 6.0, 1992, sections 2, 14 and 15. Our own, because a library
for all of TIFF would be one more dependency that reads strangers' files.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

MAX_BYTES = 2**28  # of samples; Pillow allows about as much for an RGB image (3 x 89 million)
MAX_BLOCKS = 2**20  # strips or tiles; a number is kept for each

_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _OFFSETS, _BANDS, _ROWS, _COUNTS = (
    256,
    257,
    258,
    259,
    273,
    277,
    278,
    279,
)
_PLANAR, _PREDICTOR, _TILE_WIDTH, _TILE_HEIGHT, _TILE_OFFSETS, _TILE_COUNTS, _FORMAT = (
    284,
    317,
    322,
    323,
    324,
    325,
    339,
)
_PHOTOMETRIC, _EXTRA = 262, 338
_WANTED = {_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _OFFSETS, _BANDS, _ROWS, _COUNTS, _PLANAR, _PREDICTOR, _FORMAT} | {
    _TILE_WIDTH, _TILE_HEIGHT, _TILE_OFFSETS, _TILE_COUNTS,
}  # fmt: skip
_FIELD_TYPES = {1: "B", 3: "H", 4: "I"}  # BYTE, SHORT and LONG: the only types that the tags above use


def is_tiff(data: bytes) -> bool:
    return data[:4] in (b"II*\0", b"MM\0*")


def has_other_bands(tags: Mapping[int, Any]) -> bool:
    """Whether there are bands besides grey or RGB and opacity: Pillow would drop them, or take them for opacity."""
    colours = {0: 1, 1: 1, 2: 3}.get(tags.get(_PHOTOMETRIC, -1))  # for white-is-zero, black-is-zero and RGB
    extra = tags.get(_EXTRA) or (0,)
    opacity = (extra if isinstance(extra, tuple) else (extra,))[0] in (1, 2)  # premultiplied or not
    return colours is not None and tags.get(_BANDS, 1) > colours + opacity


def block_bytes(tags: Mapping[int, Any], size: tuple[int, int]) -> int:
    """The bytes of one strip or tile, which libtiff decodes at once, in an image of `size` (width, height)."""
    width, height = size
    bits = tags.get(_BITS, (1,))
    if _TILE_WIDTH in tags:
        block = int(tags.get(_TILE_WIDTH, 1)) * int(tags.get(_TILE_HEIGHT, 1))
    else:
        block = width * min(int(tags.get(_ROWS, height)), height)
    return block * sum(bits if isinstance(bits, tuple) else (bits,)) // 8


def read_bands(data: bytes) -> np.ndarray:
    """The first image (H, W, C) uint8; 16-bit samples are scaled to 8."""
    order = "<" if data[:2] == b"II" else ">"
    tags = _read_tags(data, order)
    height, width, bands = tags[_HEIGHT][0], tags[_WIDTH][0], tags.get(_BANDS, (1,))[0]
    bits = set(tags.get(_BITS, (1,)))
    if bits not in ({8}, {16}) or set(tags.get(_FORMAT, (1,))) != {1}:
        raise ValueError(f"a TIFF of {bands} bands with samples other than unsigned 8 or 16 bits")
    dtype = np.dtype(f"{order}u{bits.pop() // 8}")
    if not 0 < height * width * bands * dtype.itemsize <= MAX_BYTES:
        raise ValueError(f"a TIFF of {height} x {width} x {bands} samples")
    if tags.get(_PLANAR, (1,))[0] == 2:
        image = np.empty((height, width, bands), dtype.newbyteorder("="))
        for plane in range(bands):
            image[..., plane : plane + 1] = _read_plane(data, tags, dtype, (height, width, 1), plane)
    else:
        image = _read_plane(data, tags, dtype, (height, width, bands), 0)
    if image.dtype == np.uint8:
        return image
    return np.stack([np.rint(row * (255 / 65535)).astype(np.uint8) for row in image])  # row by row, to save memory


def _read_tags(data: bytes, order: str) -> dict[int, tuple[int, ...]]:
    (start,) = struct.unpack_from(f"{order}I", data, 4)
    (count,) = struct.unpack_from(f"{order}H", data, start)
    tags = {}
    for entry in range(start + 2, start + 2 + 12 * count, 12):
        tag, kind, length = struct.unpack_from(f"{order}HHI", data, entry)
        if kind not in _FIELD_TYPES or tag not in _WANTED:
            continue
        if length > MAX_BLOCKS:
            raise ValueError(f"a TIFF with {length} values of tag {tag}")
        field = f"{order}{length}{_FIELD_TYPES[kind]}"
        inline = struct.calcsize(field) <= 4
        position = entry + 8 if inline else struct.unpack_from(f"{order}I", data, entry + 8)[0]
        tags[tag] = struct.unpack_from(field, data, position)
    return tags


def _read_plane(
    data: bytes, tags: dict[int, tuple[int, ...]], dtype: np.dtype, shape: tuple[int, int, int], plane: int
) -> np.ndarray:
    height, width, bands = shape
    if _TILE_OFFSETS in tags:
        offsets, counts = tags[_TILE_OFFSETS], tags[_TILE_COUNTS]
        block_height, block_width = tags[_TILE_HEIGHT][0], tags[_TILE_WIDTH][0]
    else:
        offsets, counts = tags[_OFFSETS], tags[_COUNTS]
        block_height, block_width = min(tags.get(_ROWS, (height,))[0], height), width
    across, down = -(-width // block_width), -(-height // block_height)
    if across * block_width * down * block_height * bands * dtype.itemsize > MAX_BYTES:  # tiles may reach over the edge
        raise ValueError(f"a TIFF in tiles of {block_width} x {block_height} pixels")
    image = np.empty((down * block_height, across * block_width, bands), dtype.newbyteorder("="))
    for block in range(across * down):
        position = plane * across * down + block
        top, left = block // across * block_height, block % across * block_width
        rows = min(block_height, height - top) if _TILE_OFFSETS not in tags else block_height  # the last strip is short
        size = rows * block_width * bands * dtype.itemsize
        raw = _inflate(data[offsets[position] : offsets[position] + counts[position]], tags, size)
        pixels = np.frombuffer(raw, dtype, rows * block_width * bands).reshape(rows, block_width, bands)
        if tags.get(_PREDICTOR, (1,))[0] == 2:
            pixels = np.cumsum(pixels, axis=1, dtype=image.dtype)
        image[top : top + rows, left : left + block_width] = pixels
    return image[:height, :width]


def _inflate(block: bytes, tags: dict[int, tuple[int, ...]], size: int) -> bytes:
    compression = tags.get(_COMPRESSION, (1,))[0]
    if compression == 1:
        return block
    if compression in (8, 32946):
        return zlib.decompressobj().decompress(block, size)
    raise ValueError(f"a TIFF with compression {compression}; save it uncompressed or deflated")
