"""Arrays in .npy files: rows are read as they are asked for, and the file is never mapped into memory.

Another program may cut a file short at any time. If it is mapped, that kills the process which reads it (SIGBUS), and
no check can come in time. A read just returns too little, which is an ordinary error. What this costs is in
results/benchmarks/README.md: nothing next to a training step.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from carl.errors import UserError
from carl.files import open_regular

RESTORE = "restore it and run this again"
_BLOCK_BYTES = 4 * 2**20  # read at once by whoever goes through all rows


class OpenFile:
    """A file that several threads may read at any place. It is closed when nothing refers to it any more."""

    def __init__(self, file: BinaryIO, path: Path, remedy: str) -> None:
        self.path = path
        self._file, self._remedy, self._lock = file, remedy, threading.Lock()
        weakref.finalize(self, file.close)

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fill `target` with the bytes from `offset` on; a UserError if the file does not have them."""
        while target:
            try:
                count = self._read_once(target, offset)
            except OSError as error:
                raise UserError(f"{self.path} cannot be read any more ({error.strerror}); {self._remedy}") from error
            if not count:
                raise UserError(f"{self.path} became shorter while it was in use; {self._remedy}")
            target, offset = target[count:], offset + count

    def _read_once(self, target: memoryview, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._file.fileno(), [target], offset)
        with self._lock:  # Windows reads only from the file's position, which all threads share
            self._file.seek(offset)
            return self._file.readinto(target)  # type: ignore[attr-defined, no-any-return]


@dataclass(frozen=True, eq=False)
class FileArray:
    """An array that stays in its file. Indexing reads rows into memory, as in NumPy."""

    file: OpenFile
    start: int  # of the numbers in the file, in bytes
    length: int  # rows in the file, of which this array may have only the first ones
    shape: tuple[int, ...]
    dtype: np.dtype
    columns_first: bool  # whether the first axis changes fastest in the file ("Fortran order")

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def first(self, count: int) -> FileArray:
        """The first `count` rows, not read yet."""
        return dataclasses.replace(self, shape=(min(count, len(self)), *self.shape[1:]))

    def with_last_axis(self) -> FileArray:
        """The same numbers with one more axis, of length 1."""
        return dataclasses.replace(self, shape=(*self.shape, 1))

    def __getitem__(self, rows: Any) -> np.ndarray:
        """The row of a number, or the rows of a slice, an array of numbers or a mask; a tuple cuts them further."""
        if isinstance(rows, tuple):
            found = self[rows[0]]
            return np.asarray(found[rows[1:] if found.ndim < self.ndim else (slice(None), *rows[1:])])
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            return self._block(start, max(start, stop)) if step == 1 else self._gather(np.arange(start, stop, step))
        places = np.asarray(rows)
        if places.ndim == 0:
            place = operator.index(rows)
            return np.asarray(self._gather(np.array([place]))[0])
        return self._gather(np.flatnonzero(places) if places.dtype == bool else places)

    def __iter__(self) -> Iterator[np.ndarray]:
        for block in self.blocks(_BLOCK_BYTES):
            yield from block

    def blocks(self, size: int) -> Iterator[np.ndarray]:
        """All rows in order, up to `size` bytes at a time, and at least one row."""
        step = max(1, size // max(1, self.row_bytes))
        for start in range(0, len(self), step):
            yield self[start : start + step]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array in a file cannot be used without a copy")
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)

    def _gather(self, places: np.ndarray) -> np.ndarray:
        """Rows at (B,) places. Neighbours are read together."""
        if not len(places):
            return np.empty((0, *self.shape[1:]), self.dtype)
        if places.min() < -len(self) or places.max() >= len(self):
            raise IndexError(f"rows {places.min()} to {places.max()} of {len(self)}")
        places = np.where(places < 0, places + len(self), places)
        found = np.empty((len(places), *self.shape[1:]), self.dtype)
        begins = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
        target, size = _bytes_of(found), self.row_bytes
        for (begin, end), start in zip(pairwise(begins), places[begins[:-1]].tolist(), strict=True):
            if self.columns_first:
                found[begin:end] = self._block(start, start + end - begin)
            else:
                self.file.read_into(target[begin * size : end * size], self.start + start * size)
        return found

    def _block(self, start: int, stop: int) -> np.ndarray:
        if not self.columns_first:
            rows = np.empty((stop - start, *self.shape[1:]), self.dtype)
            self.file.read_into(_bytes_of(rows), self.start + start * self.row_bytes)
            return rows
        columns = np.empty((*reversed(self.shape[1:]), stop - start), self.dtype)
        for number, column in enumerate(columns.reshape(math.prod(self.shape[1:]), stop - start)):
            self.file.read_into(_bytes_of(column), self.start + (number * self.length + start) * self.dtype.itemsize)
        return columns.T


def _bytes_of(array: np.ndarray) -> memoryview:
    """The memory of a contiguous array."""
    return array.view(np.uint8).reshape(-1).data if array.nbytes else memoryview(b"")


def open_array(path: Path, remedy: str = RESTORE) -> FileArray:
    """The array of a .npy file; a ValueError if the file holds Python objects or is too short.

    `remedy` tells the user what to do if the file can no longer be read later.
    """
    file = open_regular(path)
    opened = OpenFile(file, path, remedy)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, columns_first, dtype = read(file)
    start, size = file.tell(), os.fstat(file.fileno()).st_size
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if not shape:
        raise ValueError("it holds a single number")
    if min(shape) < 0 or math.prod(shape) * dtype.itemsize > size - start:
        raise ValueError(f"it states the shape {shape} but has only {size} bytes")
    return FileArray(opened, start, shape[0], shape, dtype, columns_first)
