"""Parquet files as Hugging Face writes them: an `image` column of encoded bytes, and perhaps a `label` column."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from carl.data.dataset import UNLABELLED
from carl.data.listing import (
    EncodedImage,
    EncodedSplit,
    Listing,
    Unusable,
    as_splits,
    check_class_names,
    files_key,
    split_in_name,
    splits_beside,
)
from carl.data.sources.base import Source, is_file
from carl.errors import UserError, first_line
from carl.files import open_regular

IMAGE_COLUMNS = ("image", "img", "images", "picture", "jpg", "png", "webp", "bytes")
LABEL_COLUMNS = ("label", "labels", "fine_label", "target", "class", "class_label", "cls", "category")
_ROWS = 256  # read at once, or fewer if they are large
_BYTES = 256 * 2**20  # of images read at once; no single image may be larger
# What pyarrow raises on damaged files, besides its own errors.
_DAMAGED = (
    pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, MemoryError,
)  # fmt: skip


@dataclass(frozen=True)
class _Columns:
    image: str
    encoded_in_struct: bool
    label: str | None
    label_is_text: bool


def list_parquet(path: Path, name: str) -> Listing:
    """The images of a file or of a folder of files, with the other splits that lie beside it."""
    shards, opened = _shards_in_folder(path) if path.is_dir() else _shards_beside_file(path)
    files = [file for paths in shards.values() for file in paths]
    with _open(files[0]) as first:
        columns = find_columns(first, files[0])
    counts = {split: sum(_count_rows(file) for file in paths) for split, paths in shards.items()}
    if not counts["train"]:
        raise UserError(f"{path} has no rows; give a Parquet file with at least one image")
    classes = _class_names(files, columns)
    if columns.label_is_text and not classes:
        classes = _distinct_labels(files, columns)
    return Listing(
        name=name,
        key=files_key(files),
        splits={
            split: _split_listing(paths, counts[split], columns, classes)
            for split, paths in shards.items()
            if counts[split]
        },
        class_names=classes,
        opened=opened,
    )


def holds_images(path: Path) -> bool:
    """Whether a Parquet file has a column of encoded images; False for any other file."""
    try:
        open_regular(path).close()
        schema = pq.read_schema(path)
    except _DAMAGED:
        return False
    return any(_holds_images(field.type) for field in schema)


def parquet_files(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*.parquet")
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _shards_beside_file(path: Path) -> tuple[dict[str, list[Path]], str]:
    candidates = [(other, other.stem) for other in path.parent.glob("*.parquet") if other != path]
    found = splits_beside(path, path.stem, candidates)
    return as_splits(found, next(iter(found))) if found else ({"train": [path]}, "train")


def _shards_in_folder(folder: Path) -> tuple[dict[str, list[Path]], str]:
    found: dict[str, list[Path]] = {}
    for path in parquet_files(folder):
        parts = split_in_name(path.relative_to(folder).with_suffix("").as_posix())
        found.setdefault(parts[1] if parts else "train", []).append(path)
    if len(found) > 1 or "train" not in found:
        return as_splits(found, next(iter(found)))
    siblings = [(other, other.name) for other in folder.resolve().parent.iterdir() if other.is_dir()]
    beside = splits_beside(folder, folder.resolve().name, siblings)
    if not beside:
        return found, "train"
    opened = next(iter(beside))
    shards = {split: [file for other in folders for file in parquet_files(other)] for split, folders in beside.items()}
    return as_splits({split: files for split, files in shards.items() if files}, opened)


def _open(path: Path) -> pq.ParquetFile:
    try:
        open_regular(path).close()
        return pq.ParquetFile(path)
    except _DAMAGED as error:
        raise UserError(
            f"{path} is not a readable Parquet file ({first_line(error)}); download or write it again"
        ) from error


def _count_rows(path: Path) -> int:
    with _open(path) as file:  # one at a time: there may be more files than a process may have open
        return int(file.metadata.num_rows)


def rows_at_once(file: pq.ParquetFile, path: Path | str) -> int:
    """How many rows to read at once, so that they take at most _BYTES even if each is as large as its whole row group.

    A value that many rows share is written once (a dictionary), so the average size of a row says nothing about what
    reading takes. The sizes are those of all columns together: asking a damaged file about one column can abort the
    process (pyarrow 26.0.1).
    """
    rows = _ROWS
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        each = group.total_byte_size // max(1, group.num_rows)
        if each > _BYTES:
            raise UserError(
                f"{path} has rows of {each} bytes, more than the {_BYTES} that are read; write smaller images"
            )
        rows = min(rows, max(1, _BYTES // max(1, group.total_byte_size)))
    return rows


def find_columns(file: pq.ParquetFile, path: Path) -> _Columns:
    schema = file.schema_arrow
    fields = {field.name: field.type for field in schema}
    images = [name for name in IMAGE_COLUMNS if name in fields and _holds_images(fields[name])]
    images = images or [name for name, kind in fields.items() if _holds_images(kind)]
    if not images:
        raise UserError(
            f"{path} has the columns {', '.join(fields) or 'none'}, none of them with encoded images; write an "
            "'image' column of bytes, as Hugging Face's datasets does"
        )
    label = next((name for name in LABEL_COLUMNS if name in fields and _holds_labels(fields[name])), None)
    return _Columns(
        image=images[0],
        encoded_in_struct=pa.types.is_struct(fields[images[0]]),
        label=label,
        label_is_text=label is not None and not pa.types.is_integer(_value_type(fields[label])),
    )


def _holds_images(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(field.name == "bytes" and _holds_images(field.type) for field in kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _holds_labels(kind: pa.DataType) -> bool:
    kind = _value_type(kind)
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _class_names(files: list[Path], columns: _Columns) -> tuple[str, ...]:
    """From the `huggingface` features of the label column, or from a `class_names` list in the metadata."""
    for path in files:
        with _open(path) as file:
            metadata: Mapping[bytes, bytes] = file.schema_arrow.metadata or {}
        features = _json(metadata.get(b"huggingface"), "info", "features", columns.label or "", "names")
        names = features if isinstance(features, list) else _json(metadata.get(b"class_names"))
        if columns.label and isinstance(names, list):
            return tuple(str(name) for name in names)
    return ()


def _json(text: bytes | None, *path: str) -> Any:
    try:
        value = json.loads(text or b"null")
    except (ValueError, RecursionError):
        return None
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _distinct_labels(files: list[Path], columns: _Columns) -> tuple[str, ...]:
    names: set[str] = set()
    try:
        for path in files:
            with _open(path) as file:
                for batch in file.iter_batches(rows_at_once(file, path), columns=[columns.label]):
                    found = set(batch.column(0).unique().to_pylist()) - names - {None}
                    if found:
                        names |= found
                        check_class_names(names, str(path))
    except UserError:
        raise
    except _DAMAGED as error:
        raise UserError(f"the labels in {path} cannot be read ({first_line(error)}); write it again") from error
    return tuple(sorted(names))


def _split_listing(paths: list[Path], count: int, columns: _Columns, classes: tuple[str, ...]) -> EncodedSplit:
    label_of = {name: label for label, name in enumerate(classes)}

    def read() -> Iterator[EncodedImage]:
        for path in paths:
            yield from _read_file(path, columns, label_of)

    return EncodedSplit(count, columns.label is not None, read)


def _read_file(path: Path, columns: _Columns, label_of: Mapping[str, int]) -> Iterator[EncodedImage]:
    file = _open(path)
    missing = {columns.image, columns.label} - {None, *file.schema_arrow.names}
    if missing:
        raise UserError(f"{path} lacks the column {missing.pop()!r} that the other files have; write it again")
    wanted = [columns.image] if columns.label is None else [columns.image, columns.label]
    row = 0
    try:
        for batch in file.iter_batches(rows_at_once(file, path), columns=wanted):
            images = batch.column(columns.image)
            content = images.field("bytes") if columns.encoded_in_struct else images
            names = _names(images, path, row)
            labels = batch.column(columns.label).to_pylist() if columns.label else [None] * len(batch)
            for name, data, label in zip(names, content.to_pylist(), labels, strict=True):
                number = label_of.get(label, UNLABELLED) if columns.label_is_text else label
                number = UNLABELLED if number is None else number
                if not -(2**63) <= number < 2**63:
                    raise UserError(f"{path} has the label {number}; number the classes from 0")
                yield EncodedImage(name, data or Unusable("no image bytes in the row"), number)
            row += len(batch)
    except UserError:
        raise
    except _DAMAGED as error:
        raise UserError(
            f"{path} is damaged at row {row} or later ({first_line(error)}); download or write it again"
        ) from error


def _names(images: pa.Array, path: Path, first_row: int) -> list[str]:
    numbered = [f"{path.name}#{first_row + i}" for i in range(len(images))]
    if not pa.types.is_struct(images.type) or images.type.get_field_index("path") < 0:
        return numbered
    paths = images.field("path").to_pylist()
    return [path if isinstance(path, str) and path else number for path, number in zip(paths, numbered, strict=True)]


PARQUET = Source(
    about="As Hugging Face writes it: encoded images, labels, class names; or a folder of such files.",
    list=lambda asked: list_parquet(asked.place, asked.name),
    recognises=lambda path: is_file(path, ".parquet"),
    tells=lambda file: file.name.lower().endswith(".parquet") and holds_images(Path(file.path)),
    known_by_name=False,
)
