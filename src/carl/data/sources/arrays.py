"""Images in .npy and .npz files. Nothing in them is ever unpickled."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from carl.data.decoding.file_arrays import FileArray, open_array
from carl.data.listing import (
    LARGEST_IMAGE,
    MOST_LETTERS,
    ArraySplit,
    Listing,
    SplitListing,
    StoredSplit,
    as_splits,
    files_key,
    split_in_name,
    splits_beside,
)
from carl.data.sources.base import Source, is_file
from carl.defaults import MOST_CLASSES
from carl.errors import UserError
from carl.files import open_regular

IMAGE_KEYS = ("images", "image", "x", "data", "pixels", "imgs", "arr_0")
LABEL_KEYS = ("labels", "label", "y", "targets", "target", "arr_1")
_BLOCK_BYTES = 16 * 2**20
_MOST_CHANNELS = 16  # an axis up to this long may hold channels
_LARGEST_COLUMNS = 2 * 2**30  # bytes of an array with columns first, which has to be read at once
_LARGEST_SMALL = 512 * 2**20  # bytes of labels: enough for 64 million images
_LARGEST_MEMBER = 2**48  # bytes: more than any disk holds
_UNREADABLE = (
    KeyError, ValueError, TypeError, EOFError, OSError, MemoryError, OverflowError, RuntimeError, SyntaxError,
    NotImplementedError, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def list_npy(path: Path, name: str) -> Listing:
    """One array (N, H, W, C), (N, H, W) or (N, C, H, W) of uint8; labels in `NAME-labels.npy` beside it."""
    others = [p for p in path.parent.glob("*.npy") if p != path and not _is_labels_file(p)]
    found = splits_beside(path, path.stem, [(other, other.stem) for other in others]) or {"train": [path]}
    files, opened = as_splits(found, next(iter(found)))
    labels = {split: _labels_file(paths[0]) for split, paths in files.items()}
    used = [paths[0] for paths in files.values()] + [file for file in labels.values() if file]
    return Listing(
        name=name,
        key=files_key(used),
        splits={split: _npy_split(paths[0], labels[split]) for split, paths in files.items()},
        opened=opened,
    )


def list_npz(path: Path, name: str) -> Listing:
    """Arrays by name: `images` and `labels`, or one pair per split, such as `x_train` and `y_train`."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            keys = [Path(member).stem for member in archive.namelist() if member.endswith(".npy")]
    except _UNREADABLE as error:
        raise UserError(f"{path} is not a readable .npz file ({error}); save it again with numpy.savez") from error
    images, labels = _keys_by_split(keys, IMAGE_KEYS), _keys_by_split(keys, LABEL_KEYS)
    if not images:
        raise UserError(
            f"{path} has the arrays {', '.join(keys) or 'none'}, none of them called {', '.join(IMAGE_KEYS[:4])}; "
            "save it with numpy.savez(file, images=..., labels=...)"
        )
    if "train" not in images:
        first = next(iter(images))
        images["train"] = images.pop(first)
        labels = {"train": labels[first]} if first in labels else {}
    names = _npz_class_names(path, keys)
    return Listing(
        name=name,
        key=files_key([path]),
        splits={split: _npz_split(path, key, labels.get(split)) for split, key in images.items()},
        class_names=names,
    )


def as_labels(values: np.ndarray, count: int, where: str) -> np.ndarray:
    """The labels as (N,) int64, or an error that says what is wrong with them."""
    values = values.reshape(-1) if values.ndim == 2 and 1 in values.shape else values
    if values.ndim != 1 or len(values) != count:
        raise UserError(f"{where} has the shape {values.shape} for {count} images; give one label per image")
    if values.dtype.kind not in "iub":
        raise UserError(f"{where} holds {values.dtype}; labels are integers that number the classes from 0")
    return values.astype(np.int64)


def _npy_split(path: Path, labels_file: Path | None) -> SplitListing:
    try:
        array = open_array(path)
    except _UNREADABLE as error:
        raise UserError(
            f"{path} cannot be read as an array of numbers ({error}); save uint8 images with numpy.save"
        ) from error
    shape = as_images(_stand_in(array.shape, array.dtype), str(path)).shape
    labels = None
    if labels_file is not None:
        labels = as_labels(_load_small(labels_file), len(array), str(labels_file))
    pixels = array.with_last_axis() if array.ndim == 3 else array
    if pixels.shape == shape and not array.columns_first:
        return StoredSplit(pixels, labels)
    return ArraySplit(len(array), lambda: _blocks(pixels, labels))


def _stand_in(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array of this shape and type that takes no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def as_images(array: np.ndarray, where: str) -> np.ndarray:
    """An array of images as a view (N, H, W, C), or an error that says why it does not hold images."""
    if array.dtype != np.uint8:
        raise UserError(
            f"{where} holds {array.dtype}; images are uint8 from 0 to 255: save them with "
            ".astype('uint8'), after multiplying floats in [0, 1] by 255"
        )
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or 0 in array.shape:
        raise UserError(f"{where} has the shape {array.shape}; images are (N, H, W, C) or (N, H, W), at least one")
    if array.shape[1] * array.shape[2] * array.shape[3] > LARGEST_IMAGE:
        raise UserError(
            f"{where} has the shape {array.shape}; an image may have at most {LARGEST_IMAGE} bytes: save smaller ones"
        )
    first, last = array.shape[1], array.shape[3]
    if last > _MOST_CHANNELS >= first or (first in (1, 3) and last not in (1, 3, 4) and last > first):
        array = array.transpose(0, 2, 3, 1)
    if array.shape[3] > _MOST_CHANNELS:
        raise UserError(
            f"{where} has the shape {array.shape}; no axis looks like channels (at most {_MOST_CHANNELS}): save it as "
            "(N, H, W, C)"
        )
    return array


def _blocks(array: FileArray, labels: np.ndarray | None) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    start = 0
    for block in array.blocks(_BLOCK_BYTES):
        pixels = as_images(block, str(array.path))
        yield pixels, None if labels is None else labels[start : start + len(pixels)]
        start += len(pixels)


def _is_labels_file(path: Path) -> bool:
    return path.stem.endswith(("-labels", "_labels"))


def _labels_file(path: Path) -> Path | None:
    candidates = (path.with_name(f"{path.stem}{joint}labels.npy") for joint in "-_")
    return next((candidate for candidate in candidates if candidate.exists()), None)


def _load_small(path: Path) -> np.ndarray:
    try:
        array = open_array(path)
        if array.nbytes > _LARGEST_SMALL:
            raise ValueError(f"its shape {array.shape} is too large for labels")
    except _UNREADABLE as error:
        raise UserError(f"{path} cannot be read as an array of numbers ({error}); save it with numpy.save") from error
    return np.asarray(array)


def _keys_by_split(keys: list[str], wanted: tuple[str, ...]) -> dict[str, str]:
    """For each split the key that is `wanted` once the name of the split is removed; earlier words win."""
    found: dict[str, str] = {}
    for want in wanted:
        for key in keys:
            before, split, after = split_in_name(key.replace("_", "-")) or (key, "train", "")
            if (before + after).strip("-_").lower() == want:
                found.setdefault(split, key)
    return found


def _npz_class_names(path: Path, keys: list[str]) -> tuple[str, ...]:
    key = next((key for key in ("class_names", "classes") if key in keys), None)
    if key is None:
        return ()
    try:
        shape, dtype = _npz_header(path, key)
    except UserError:  # perhaps an array of objects, which is never unpickled
        return ()
    if len(shape) != 1 or dtype.kind not in "US":
        return ()
    names = npz_array(path, key, 4 * MOST_LETTERS)[: MOST_CLASSES + 1]  # one too many is refused later
    return tuple(str(value) for value in names)


def _npz_split(path: Path, key: str, labels_key: str | None) -> ArraySplit:
    shape, dtype = _npz_header(path, key)
    if len(shape) not in (3, 4):
        raise UserError(f"{path}[{key}] has the shape {shape}; images are (N, H, W, C) or (N, H, W)")
    as_images(_stand_in(shape, dtype), f"{path}[{key}]")
    labels = None
    if labels_key is not None:
        labels = as_labels(npz_array(path, labels_key), shape[0], f"{path}[{labels_key}]")

    def read() -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        start = 0
        for block in npz_rows(path, key):
            pixels = as_images(block, f"{path}[{key}]")
            yield pixels, None if labels is None else labels[start : start + len(pixels)]
            start += len(pixels)

    return ArraySplit(shape[0], read)


def _npz_header(path: Path, key: str) -> tuple[tuple[int, ...], np.dtype]:
    """The shape and type that an array in an .npz file states, if the file is large enough for it."""
    where = f"{path}[{key}]"
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive, archive.open(f"{key}.npy") as member:
            shape, _, dtype = _read_header(member, where)
            size = archive.getinfo(f"{key}.npy").file_size
    except UserError:
        raise
    except _UNREADABLE as error:
        raise UserError(f"{where} is damaged ({error}); save or download it again") from error
    if math.prod(shape) * dtype.itemsize > size or min(shape, default=0) < 0 or size > _LARGEST_MEMBER:
        raise UserError(f"{where} states the shape {shape} but holds only {size} bytes; save or download it again")
    return shape, dtype


def npz_array(path: Path, key: str, largest: int = _LARGEST_SMALL) -> np.ndarray:
    """An array in an .npz file that takes at most `largest` bytes."""
    shape, dtype = _npz_header(path, key)
    if math.prod(shape) * dtype.itemsize > largest:
        raise UserError(f"{path}[{key}] has the shape {shape}, too large for labels or names; save it again")
    try:
        with open_regular(path) as file, np.load(file, allow_pickle=False) as arrays:
            return np.asarray(arrays[key])
    except _UNREADABLE as error:
        raise UserError(
            f"{path}[{key}] cannot be read as an array of numbers ({error}); save it again with numpy.savez"
        ) from error


def npz_rows(path: Path, key: str) -> Iterator[np.ndarray]:
    """An array in an .npz file, in blocks of rows, so that it need not fit into memory."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive, archive.open(f"{key}.npy") as member:
            shape, fortran_order, dtype = _read_header(member, f"{path}[{key}]")
            row_bytes = math.prod(shape[1:]) * dtype.itemsize
            if not shape or row_bytes > LARGEST_IMAGE:
                raise UserError(f"{path}[{key}] has the shape {shape}; save rows of at most {LARGEST_IMAGE} bytes")
            if fortran_order and row_bytes * shape[0] > _LARGEST_COLUMNS:
                raise UserError(f"{path}[{key}] has its columns first; save it again with numpy.ascontiguousarray")
            if fortran_order:  # columns first: rows cannot be read one by one
                yield np.frombuffer(member.read(row_bytes * shape[0]), dtype).reshape(shape, order="F")
                return
            rows = max(1, _BLOCK_BYTES // max(1, row_bytes))
            for start in range(0, shape[0], rows):
                count = min(rows, shape[0] - start)
                yield np.frombuffer(member.read(count * row_bytes), dtype).reshape(count, *shape[1:])
    except UserError:
        raise
    except _UNREADABLE as error:
        raise UserError(f"{path}[{key}] is damaged ({error}); save or download it again") from error


def _read_header(member: IO[bytes], where: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    try:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran_order, dtype = read(member)
    except _UNREADABLE as error:
        raise UserError(f"{where} is not an array ({error}); save it again with numpy.savez") from error
    if dtype.hasobject:
        raise UserError(f"{where} holds Python objects, which are not loaded; save uint8 images of one size")
    return shape, fortran_order, dtype


NPY = Source(
    about="One array of uint8 images, (N, H, W, C) or (N, C, H, W); labels in NAME-labels.npy beside it.",
    list=lambda asked: list_npy(asked.place, asked.name),
    recognises=lambda path: is_file(path, ".npy"),
    known_by_name=False,
)
NPZ = Source(
    about="Arrays by name: images and labels, or x_train, y_train, x_test and y_test.",
    list=lambda asked: list_npz(asked.place, asked.name),
    recognises=lambda path: is_file(path, ".npz"),
    known_by_name=False,
    holds_splits=True,
)
