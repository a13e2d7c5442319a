"""Rows that are safe on the disk before their file is whole, so that interrupted work can be resumed.

FILE.parts/
  key                what the rows are of: other images or other weights begin anew
  000000.parquet     the rows of the first PART images, and in its metadata those that have no row
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from carl import files
from carl.errors import UserError
from carl.use.embedding_files import DAMAGED, open_writer

PART = 4096  # images: seconds of work for small ones, and 8 MB for features of 512 numbers
_BAD = b"carl.bad"


@dataclass(frozen=True)
class BadFile:
    """An image that has no row."""

    name: str
    reason: str


class Parts:
    """The side folder of an output file."""

    def __init__(self, output: Path, key: str) -> None:
        self.folder = output.with_name(f"{output.name}.parts")
        self.key = key

    def belong(self) -> bool:
        """Whether the folder holds parts of this very work."""
        file = self.folder / "key"
        return file.is_file() and file.read_text(encoding="utf-8", errors="replace") == self.key

    def begin(self) -> int:
        """Make the folder, or find it; returns the number of parts that are done."""
        if not self.belong():
            if self.folder.is_dir() and any(self.folder.iterdir()) and not (self.folder / "key").is_file():
                raise UserError(f"{self.folder} holds what carl embed did not make; move it away, or choose another -o")
            shutil.rmtree(self.folder, ignore_errors=True)
            files.write_text(self.folder / "key", self.key)
        files.remove_partial_files(self.folder)
        paths = self._paths()
        damaged = next((place for place, path in enumerate(paths) if not _is_whole(path)), len(paths))
        for path in paths[damaged:]:  # made again
            path.unlink()
        return damaged

    def write(self, number: int, rows: pa.Table, bad: Sequence[BadFile]) -> None:
        listed = json.dumps([[one.name, one.reason] for one in bad])
        rows = rows.replace_schema_metadata({**(rows.schema.metadata or {}), _BAD: listed.encode()})
        with files.atomic_writer(self._path(number)) as file, open_writer(file, rows.schema) as writer:
            writer.write_table(rows)

    def tables(self) -> Iterator[pa.Table]:
        for path in self._paths():
            try:
                table = _rows(path)
            except DAMAGED as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                raise UserError(f"{path} is damaged ({reason}); give the command again, and it is made anew") from None
            yield table.replace_schema_metadata(None)

    def bad(self) -> list[BadFile]:
        return [one for path in self._paths() for one in _bad_files(path)]

    def count(self) -> int:
        return len(self._paths())

    def rows(self) -> int:
        return sum(pq.read_metadata(path).num_rows for path in self._paths())

    def schema(self) -> pa.Schema:
        return pq.read_schema(self._path(0)).remove_metadata()

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _paths(self) -> list[Path]:
        """Parts from the first to the last that has all before it."""
        paths: list[Path] = []
        while self._path(len(paths)).is_file():
            paths.append(self._path(len(paths)))
        return paths

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.parquet"


def _rows(path: Path) -> pa.Table:
    return pq.read_table(path, memory_map=False, page_checksum_verification=True)


def _bad_files(path: Path) -> list[BadFile]:
    return [BadFile(str(name), str(reason)) for name, reason in json.loads(pq.read_schema(path).metadata[_BAD])]


def _is_whole(path: Path) -> bool:
    """Whether all of a part can be read; its pages have checksums."""
    try:
        _bad_files(path)
        _rows(path)
    except DAMAGED:
        return False
    return True
