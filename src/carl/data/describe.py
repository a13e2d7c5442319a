"""What `carl data` shows: the known sources, a description of a data set, and a sheet of its images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

from carl.data.dataset import Dataset, Split
from carl.data.decoding.decode import shown_bands
from carl.data.decoding.file_arrays import FileArray
from carl.data.open import SOURCES, open_dataset
from carl.defaults import LABELS, Labels
from carl.files import atomic_writer, check_replaceable
from carl.terminal import show_progress

Row = tuple[str, str]  # a name, and the value here

_SOFTWARE = "carl data info"
SHEET_MARK = b"Software\0" + _SOFTWARE.encode()  # tells a contact sheet from other PNG files
_GAP = 2  # pixels between the images of a sheet
_CELL = 64  # pixels; smaller images are enlarged by a whole factor, larger ones are shrunk


@dataclass(frozen=True)
class DataRequest:
    """What the user asked `carl data info` or `carl data prepare` for."""

    source: str
    image_size: int | None = None
    labels: Labels = LABELS[0]
    max_bad: int | None = None
    root: Path | None = None  # folder of the official archives

    def opened(self) -> Dataset:
        return open_dataset(
            self.source,
            image_size=self.image_size,
            root=self.root,
            max_bad=self.max_bad,
            labels=self.labels,
            progress=show_progress,
        )


def show_info(request: DataRequest, sheet: Path | None, force: bool) -> Iterator[str]:
    """Draw a contact sheet; returns what the data set holds, one line each, and where the sheet is."""
    path = sheet or Path(f"{Path(request.source).stem}-sheet.png")
    check_replaceable(path, force, SHEET_MARK)
    dataset = request.opened()
    yield from in_columns(describe(dataset))
    contact_sheet(dataset, path)
    yield f"contact sheet: {path}"


def prepare(request: DataRequest) -> list[str]:
    """Pack a data set; returns the remarks on it and its counts, one line each."""
    dataset = request.opened()
    counts = ", ".join(f"{len(split)} {name}" for name, split in dataset.splits.items())
    return [*dataset.notes, f"ready: {counts}"]


def in_columns(rows: Sequence[Row]) -> list[str]:
    """Names and values below each other, one line per row."""
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {value}" for name, value in rows]


def list_sources() -> list[Row]:
    """Every data set that is known by name and every kind of file that can be opened, with a sentence about it."""
    return [(name, source.about) for name, source in SOURCES.items()]


def describe(dataset: Dataset) -> list[Row]:
    """Counts, sizes, classes, statistics and notes, one row each."""
    images = dataset.train.images
    rows = [
        ("source", dataset.name),
        ("image size", f"{images.height} x {images.width} pixels, {_channels(images.channels)}"),
    ]
    rows += [(name, _describe_split(split)) for name, split in dataset.splits.items()]
    rows += [
        ("classes", _describe_classes(dataset.class_names)),
        ("mean", ", ".join(f"{value:.4f}" for value in dataset.statistics.mean)),
        ("std", ", ".join(f"{value:.4f}" for value in dataset.statistics.std)),
        ("fingerprint", dataset.fingerprint),
    ]
    if isinstance(images.pixels, FileArray):
        rows.append(("packed in", str(images.pixels.path)))
    return rows + [("note", note) for note in dataset.notes]


def contact_sheet(dataset: Dataset, path: Path, columns: int = 10, rows: int = 10) -> None:
    """Write a PNG of training images: one row per class if there are labels, otherwise images spread over the data."""
    split = dataset.train
    indices = _by_class(split, columns, rows) if split.labelled else _spread(len(split), columns, rows)
    labelled = split.labelled and bool(dataset.class_names)
    margin = 96 if labelled else 0
    height, width = _cell_size(split)
    sheet = Image.new("RGB", (margin + columns * (width + _GAP) + _GAP, len(indices) * (height + _GAP) + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for row, row_indices in enumerate(indices):
        top = _GAP + row * (height + _GAP)
        if labelled and split.labels is not None:
            name = dataset.class_names[split.labels[row_indices[0]]]
            draw.text((4, top + height // 2 - 5), name[:15], fill="black")
        for column, pixels in enumerate(split.images.gather(row_indices)):
            tile = Image.fromarray(np.ascontiguousarray(shown_bands(pixels))).resize(
                (width, height), _resampling(pixels, height)
            )
            sheet.paste(tile, (margin + _GAP + column * (width + _GAP), top))
    about = PngInfo()
    about.add_text("Software", _SOFTWARE)
    with atomic_writer(path) as file:
        sheet.save(file, "PNG", pnginfo=about)


def _describe_split(split: Split) -> str:
    text = f"{len(split):,} images"
    if split.labels is None or not split.labelled:
        return f"{text} without labels"
    labels = split.labels[split.labels >= 0]
    counts = np.bincount(labels)
    counts = counts[counts > 0]
    some = "" if len(labels) == len(split) else f", {len(labels):,} of them labelled"
    each = f"{counts.min():,}" if counts.min() == counts.max() else f"{counts.min():,} to {counts.max():,}"
    return f"{text}{some}, {each} per class"


def _describe_classes(names: tuple[str, ...]) -> str:
    if not names:
        return "none"
    shown = ", ".join(names[:10])
    return f"{len(names)}: {shown}{', ...' if len(names) > 10 else ''}"


def _channels(count: int) -> str:
    return {1: "grey", 3: "RGB"}.get(count, f"{count} channels (no colour operations)")


def _by_class(split: Split, columns: int, rows: int) -> list[np.ndarray]:
    labels = split.labels if split.labels is not None else np.empty(0, np.int64)
    present = np.unique(labels[labels >= 0])
    return [np.flatnonzero(labels == label)[:columns] for label in present[:rows]]


def _spread(count: int, columns: int, rows: int) -> list[np.ndarray]:
    indices = np.unique(np.linspace(0, count - 1, columns * rows).astype(np.int64))
    return [indices[start : start + columns] for start in range(0, len(indices), columns)]


def _cell_size(split: Split) -> tuple[int, int]:
    height, width = split.images.height, split.images.width
    if height <= _CELL:
        factor = _CELL // height
        return height * factor, width * factor
    return _CELL, max(1, round(width * _CELL / height))


def _resampling(pixels: np.ndarray, height: int) -> Image.Resampling:
    return Image.Resampling.BOX if pixels.shape[0] <= height else Image.Resampling.BICUBIC
