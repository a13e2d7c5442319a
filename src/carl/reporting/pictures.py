"""Images inside a page: sheets of thumbnails and grids, as data addresses."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from PIL import Image

SHEET_COLUMNS, SHEET_ROWS = 25, 20
BLOCK = 16  # WebP codes blocks of so many pixels: a thumbnail that fills whole ones does not bleed into the next
LOSSLESS_PIXELS = 2_000_000  # up to here sheets are kept exact: about 3 s of encoding
SETTINGS = ((1, 88), (1, 75), (1, 55), (2, 75), (2, 50), (4, 50))  # (reduction, quality), the best first


@dataclass(frozen=True)
class Sheets:
    """Thumbnails side by side, row after row, sheet after sheet."""

    images: list[str]
    columns: int
    rows: int
    width: int  # of a thumbnail
    height: int
    cell_width: int  # from one thumbnail to the next
    cell_height: int

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def thumbnail_sheets(thumbnails: np.ndarray, budget: int) -> Sheets:
    """Thumbnails (N, h, w, 3) in sheets of together at most `budget` bytes, as good as that allows."""
    sheets = -(-len(thumbnails) // (SHEET_COLUMNS * SHEET_ROWS))
    if thumbnails[..., 0].size <= LOSSLESS_PIXELS:
        encoded = [webp(sheet, lossless=True) for sheet in _sheets(thumbnails)]
        if sum(map(len, encoded)) <= budget:
            return _described(encoded, thumbnails)
    for reduction, quality in SETTINGS:
        small = _reduced(thumbnails, reduction)
        first = webp(next(_sheets(small)), quality)
        if len(first) * sheets > 1.3 * budget and (reduction, quality) != SETTINGS[-1]:
            continue  # this will not fit: spare the rest of the encoding
        encoded = [webp(sheet, quality) for sheet in _sheets(small)]
        if sum(map(len, encoded)) <= budget:
            break
    return _described(encoded, small)


def view_picture(originals: np.ndarray, views: np.ndarray, gap: int = 2) -> dict[str, Any]:
    """A grid with one row per image: the image itself, then its views (rows, columns, h, w, 3)."""
    rows, columns, height, width = views.shape[:4]
    picture = np.zeros((rows * (height + gap) - gap, (columns + 1) * (width + gap) + 2 * gap, 4), np.uint8)
    for row in range(rows):
        top = row * (height + gap)
        first = np.asarray(Image.fromarray(originals[row]).resize((width, height), Image.Resampling.BILINEAR))
        picture[top : top + height, :width] = _opaque(first)
        for column in range(columns):
            left = (column + 1) * (width + gap) + 3 * gap  # the image stands a little apart from its views
            picture[top : top + height, left : left + width] = _opaque(views[row, column])
    return {"address": address(webp(picture, lossless=True)), "width": picture.shape[1], "height": picture.shape[0]}


def webp(pixels: np.ndarray, quality: int = 80, lossless: bool = False) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="WEBP", quality=quality, lossless=lossless, method=3)
    return buffer.getvalue()


def address(encoded: bytes) -> str:
    return "data:image/webp;base64," + base64.b64encode(encoded).decode()


def _described(encoded: list[bytes], thumbnails: np.ndarray) -> Sheets:
    height, width = thumbnails.shape[1:3]
    return Sheets(
        images=[address(sheet) for sheet in encoded],
        columns=SHEET_COLUMNS,
        rows=SHEET_ROWS,
        width=width,
        height=height,
        cell_width=_whole(width),
        cell_height=_whole(height),
    )


def _sheets(thumbnails: np.ndarray) -> Iterator[np.ndarray]:
    height, width = thumbnails.shape[1:3]
    padding = ((0, 0), (0, _whole(height) - height), (0, _whole(width) - width), (0, 0))
    for start in range(0, len(thumbnails), SHEET_COLUMNS * SHEET_ROWS):
        cells = np.pad(thumbnails[start : start + SHEET_COLUMNS * SHEET_ROWS], padding, mode="edge")
        sheet = np.zeros((SHEET_COLUMNS * SHEET_ROWS, *cells.shape[1:]), np.uint8)
        sheet[: len(cells)] = cells
        grid = sheet.reshape(SHEET_ROWS, SHEET_COLUMNS, *cells.shape[1:]).swapaxes(1, 2)
        yield grid.reshape(SHEET_ROWS * cells.shape[1], SHEET_COLUMNS * cells.shape[2], 3)


def _whole(side: int) -> int:
    return -(-side // BLOCK) * BLOCK


def _reduced(thumbnails: np.ndarray, factor: int) -> np.ndarray:
    if factor == 1:
        return thumbnails
    height, width = (max(1, side // factor) for side in thumbnails.shape[1:3])
    part = thumbnails[:, : height * factor, : width * factor]
    means = part.reshape(len(part), height, factor, width, factor, 3).mean(axis=(2, 4))
    return np.asarray(means.round(), np.uint8)


def _opaque(pixels: np.ndarray) -> np.ndarray:
    return np.concatenate([pixels, np.full((*pixels.shape[:2], 1), 255, np.uint8)], axis=2)
