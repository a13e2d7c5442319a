"""Rows that are safe on the disk before their file is whole, so that interrupted work can be resumed.

FILE.parts/
  lock               held by the process that writes FILE
  key                which images and weights the rows are from, and with which options they were computed; for other
                     images or weights, the work starts again
  000000.parquet     the rows of the first PART images; its metadata has the key, and the images that have no row
  000001.begun.parquet  the same for the first batches of a part that is not whole yet
  joining            present once FILE itself is being written
  joined/            the files of FILE, where that is a folder, until all of them are there
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from carl import files
from carl.data.listing import BadFile
from carl.errors import UserError, first_line
from carl.use.embedding_files import DAMAGED, open_writer

PART = 4096  # images: seconds of work for small ones, and 8 MB for features of 512 numbers
_BAD, _KEY = b"carl.bad", b"carl.key"
_LOCK = "lock"
_BEGUN = ".begun.parquet"


class Parts:
    """The side folder of an output file."""

    def __init__(self, output: Path, work: str, options: str = "") -> None:
        """`work` tells the images and weights, and `options` is how they are embedded, as the user would write it."""
        self.output = Path(os.path.realpath(output)) if output.is_symlink() else output  # one folder for all its links
        self.folder = self.output.with_name(f"{self.output.name}.parts")
        self.key = f"{work}\n{options}"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from writing the same output; afterwards the folder goes, unless it holds rows."""
        self._refuse_foreign_folder()
        with files.only_holder(self.folder / _LOCK) as held:
            if not held:
                raise UserError(
                    f"{self.output} is being written by another process; wait until it has ended, or choose another -o"
                )
            try:
                yield
            finally:
                with suppress(OSError):  # on Windows an open file stays
                    if {path.name for path in self.folder.iterdir()} == {_LOCK}:
                        (self.folder / _LOCK).unlink()
                        self.folder.rmdir()

    def _refuse_foreign_folder(self) -> None:
        if not self.folder.is_dir() or (self.folder / "key").is_file():
            return
        names = {path.name for path in self.folder.iterdir() if not path.name.endswith(files.PARTIAL)}
        if names - {_LOCK}:  # these a process leaves that was killed as it began
            raise UserError(f"{self.folder} holds what carl embed did not make; move it away, or choose another -o")

    def belong(self) -> bool:
        """Whether the folder holds parts of this very work."""
        return self._found_key() == self.key

    def _found_key(self) -> str:
        file = self.folder / "key"
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""

    def refuse_other_options(self) -> None:
        """Refuse to throw away what an interrupted call did with other options: they may just have been forgotten."""
        (work, _, options), (found, _, before) = self.key.partition("\n"), self._found_key().partition("\n")
        if found == work and before not in ("", options) and (self.count() or self._begun_parts()):
            raise UserError(
                f"{self.folder} holds images that were embedded with {before}; give these options to resume, or start "
                "again with --force"
            )

    @property
    def joined(self) -> Path:
        """Where the files of a folder are until it is whole."""
        return self.folder / "joined"

    def give_folder_its_name(self) -> None:
        """Put the finished folder in its place; an older one is moved aside first, and removed with the parts."""
        if self.output.is_dir():
            os.rename(self.output, self.folder / "replaced")
        os.rename(self.joined, self.output)

    def are_being_joined(self) -> bool:
        """Whether this very work was stopped while it wrote the output, so that what is there is its own."""
        return self.belong() and (self.folder / "joining").is_file()

    def begin(self) -> int:
        """Prepare the folder; returns the number of parts that are done."""
        if not self.belong():
            self.remove()
            files.write_text(self.folder / "key", self.key)
        files.remove_partial_files(self.folder)
        paths = self._paths()
        damaged = next((place for place, path in enumerate(paths) if not self._is_whole(path)), len(paths))
        for path in paths[damaged:]:  # made again
            path.unlink()
        for number, path in self._begun_parts().items():
            if number < damaged or not self._is_whole(path):
                path.unlink()
        return damaged

    def begin_joining(self) -> None:
        files.write_text(self.folder / "joining", "")

    def write(self, number: int, rows: pa.Table, bad: Sequence[BadFile]) -> None:
        """Write a part that is whole."""
        self._write(self._path(number), rows, bad)
        self._begun_path(number).unlink(missing_ok=True)

    def write_begun(self, number: int, rows: pa.Table, bad: Sequence[BadFile]) -> None:
        """Keep what is done of a part, in the place of what was kept of it before."""
        self._write(self._begun_path(number), rows, bad)

    def read_begun(self, number: int) -> tuple[pa.Table, list[BadFile]]:
        """What is kept of a part that is not whole."""
        path = self._begun_path(number)
        return _rows(path).replace_schema_metadata(None), _bad_files(path)

    def begun(self) -> dict[int, int]:
        """For each part that is not whole, how many of its images are kept."""
        return {number: _images(path) for number, path in self._begun_parts().items()}

    def _write(self, path: Path, rows: pa.Table, bad: Sequence[BadFile]) -> None:
        listed = json.dumps([[one.name, one.reason] for one in bad])
        about = {_BAD: listed.encode(), _KEY: self.key.encode()}
        rows = rows.replace_schema_metadata({**(rows.schema.metadata or {}), **about})
        with files.atomic_writer(path) as file, open_writer(file, rows.schema) as writer:
            writer.write_table(rows)

    def tables(self) -> Iterator[pa.Table]:
        for path in self._paths():
            try:
                table = _rows(path)
            except DAMAGED as error:
                raise UserError(
                    f"{path} is damaged ({first_line(error)}); give the command again, and it is made anew"
                ) from None
            if not self._is_ours(table):  # possible on a disk that cannot lock
                raise UserError(
                    f"{path} is from other images or weights: another process writes {self.output} too; give the "
                    "command again when that has ended"
                )
            yield table.replace_schema_metadata(None)

    def _is_ours(self, table: pa.Table) -> bool:
        return (table.schema.metadata or {}).get(_KEY) == self.key.encode()

    def _is_whole(self, path: Path) -> bool:
        """Whether all of a part can be read, whose pages have checksums, and is from this very work."""
        try:
            _bad_files(path)
            return self._is_ours(_rows(path))
        except DAMAGED:
            return False

    def bad(self) -> list[BadFile]:
        return [one for path in self._paths() for one in _bad_files(path)]

    def count(self) -> int:
        return len(self._paths())

    def rows(self) -> int:
        return sum(pq.read_metadata(path).num_rows for path in self._paths())

    def schema(self) -> pa.Schema:
        return pq.read_schema(self._path(0)).remove_metadata()

    def remove(self) -> None:
        """Remove everything except the lock, which `alone` removes."""
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != _LOCK:
                path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        """Parts from the first to the last that has all before it."""
        paths: list[Path] = []
        while self._path(len(paths)).is_file():
            paths.append(self._path(len(paths)))
        return paths

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.parquet"

    def _begun_path(self, number: int) -> Path:
        return self.folder / f"{number:06d}{_BEGUN}"

    def _begun_parts(self) -> dict[int, Path]:
        paths = self.folder.glob(f"*{_BEGUN}")
        return {int(found[0]): path for path in paths if (found := re.match(r"\d+", path.name))}


def _rows(path: Path) -> pa.Table:
    return pq.read_table(path, memory_map=False, page_checksum_verification=True)


def _bad_files(path: Path) -> list[BadFile]:
    return [BadFile(str(name), str(reason)) for name, reason in json.loads(pq.read_schema(path).metadata[_BAD])]


def _images(path: Path) -> int:
    """Rows and images without one; 0 if the file is damaged."""
    try:
        return int(pq.read_metadata(path).num_rows) + len(_bad_files(path))
    except DAMAGED:
        return 0
