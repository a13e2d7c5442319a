"""Embeddings as files: Parquet, NumPy or CSV, written row group by row group and read back the same way.

A large set may be a folder of Parquet files, 00000.parquet and so on, each of which says which of how many it is.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from carl import files
from carl.data.sources.parquet import rows_at_once
from carl.data.sources.shards import expand
from carl.defaults import EMBEDDING_DTYPES
from carl.errors import UserError, first_line
from carl.quality import measures
from carl.user_paths import expanded

VERSION = 1  # of the format: what a file says about itself, and its rows
_ABOUT = b"carl"  # key of the metadata
MEASURED = {"float32": pa.float32(), "int32": pa.int32(), "text": pa.string()}  # types of quality measures
LONGEST_TEXT = 65_536  # letters of an image's name, or of another text of a row: systems allow 4,096
ALWAYS_READ = 2**28  # bytes of embeddings, however small their file is
MOST_PACKED = 16  # times the length of a larger file: carl packs none, and other writers save a half, or zeros
LARGEST = 1e15  # of a feature: squares of such numbers can still be added up in float32
DTYPES = dict(zip(EMBEDDING_DTYPES, (pa.float32(), pa.float16()), strict=True))
_WITH_GAPS = ("label",)  # columns in which a row may have nothing
# What reading raises if a file is damaged or was not made by carl.
DAMAGED = (pa.ArrowException, OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError, MemoryError)


@dataclass(frozen=True)
class About:
    """What a file of embeddings says about itself."""

    version: int  # of this format
    run: str  # absolute path of the run directory
    weights: str  # digest of the weights
    source: str  # the images: an absolute path, or a name
    base: str  # folder that relative paths start from
    split: str | None
    class_names: tuple[str, ...]
    file: int = 0  # number of this file, if there are several
    files: int = 1


_LOOKS_ESCAPED = re.compile(r"\\(?=(?:x5c)*udc[89a-f][0-9a-f])")
_ESCAPED = re.compile(r"\\(x5c)?((?:x5c)*)udc([89a-f][0-9a-f])")


def name_as_text(name: str) -> str:
    """A file name in characters that UTF-8 has: bytes that are not UTF-8 become escapes such as \\udcff.

    A name that holds such an escape as it is gets its backslash escaped, so that `name_from_text` finds both.
    """
    return _LOOKS_ESCAPED.sub(r"\\x5c", name).encode("utf-8", "backslashreplace").decode()


def name_from_text(text: str) -> str:
    """The file name that `name_as_text` wrote."""
    return _ESCAPED.sub(lambda at: f"\\{at[2]}udc{at[3]}" if at[1] else chr(int(f"dc{at[3]}", 16)), text)


def _with_names(about: About, change: Callable[[str], str]) -> About:
    run, source, base = map(change, (about.run, about.source, about.base))
    return replace(about, run=run, source=source, base=base, class_names=tuple(map(change, about.class_names)))


def column_types() -> dict[str, pa.DataType]:
    """The columns that are read back, except for the embedding; not every file has all of them."""
    own = {
        "path": pa.string(),
        "split": pa.string(),
        "label": pa.int64(),
        "prototype": pa.int32(),
        "probability": pa.float32(),
        "entropy": pa.float32(),
    }
    return own | {name: MEASURED[one.kind] for name, one in measures().items()}


def open_writer(file: IO[bytes], schema: pa.Schema) -> pq.ParquetWriter:
    """Numbers as they are: random digits neither repeat nor compress. Checksums tell damage to them."""
    compression = {field.name: "none" if field.name == "embedding" else "zstd" for field in schema}
    return pq.ParquetWriter(file, schema, compression=compression, use_dictionary=False, write_page_checksum=True)


def write_parquet(output: Path, tables: Iterable[pa.Table], schema: pa.Schema, rows: int, about: About) -> None:
    """One row per image; the embedding is a list of floats."""
    schema = schema.with_metadata({_ABOUT: json.dumps(asdict(_with_names(about, name_as_text))).encode()})
    with files.atomic_writer(output) as file, open_writer(file, schema) as writer:
        for table in tables:
            writer.write_table(table.cast(schema))


def write_npy(output: Path, tables: Iterable[pa.Table], schema: pa.Schema, rows: int, about: About) -> None:
    """The embeddings (N, D), float32 or float16; `rows_file` has the other columns, one line per row."""
    kind = "<f2" if schema.field("embedding").type.value_type == pa.float16() else "<f4"
    header = {"descr": kind, "fortran_order": False, "shape": (rows, embedding_size(schema))}
    with files.atomic_writer(output) as file, files.atomic_writer(rows_file(output)) as beside:
        np.lib.format.write_array_header_1_0(file, header)
        others = schema.remove(schema.get_field_index("embedding"))
        with pyarrow.csv.CSVWriter(beside, others) as writer:
            for table in tables:
                file.write(embeddings_of(table).astype(kind).tobytes())
                writer.write_table(table.drop_columns("embedding"))


def rows_file(output: Path) -> Path:
    """The file beside an .npy file that holds the columns other than the embedding."""
    return output.with_name(f"{output.stem}.rows.csv")


def write_csv(output: Path, tables: Iterable[pa.Table], schema: pa.Schema, rows: int, about: About) -> None:
    """One column per number of the embedding: e0, e1 and so on, after the others."""
    size = embedding_size(schema)
    flat = schema.remove(schema.get_field_index("embedding"))
    for number in range(size):
        flat = flat.append(pa.field(f"e{number}", pa.float32()))
    with files.atomic_writer(output) as file, pyarrow.csv.CSVWriter(file, flat) as writer:
        for table in tables:
            numbers = embeddings_of(table)
            columns = [*table.drop_columns("embedding").columns, *(pa.array(numbers[:, i]) for i in range(size))]
            writer.write_table(pa.Table.from_arrays(columns, schema=flat))


def write_folder(
    folder: Path, tables: Iterator[pa.Table], schema: pa.Schema, *, rows: int, about: About, rows_per_file: int
) -> None:
    """Parquet files in a folder, each with as many rows, except the last."""
    total, rest = -(-rows // rows_per_file), list[pa.Table]()

    def of_one_file() -> Iterator[pa.Table]:
        missing = rows_per_file
        while missing and (table := rest.pop() if rest else next(tables, None)) is not None:
            if len(table) > missing:
                rest.append(table.slice(missing))
                table = table.slice(0, missing)
            missing -= len(table)
            yield table

    for number in range(total):
        one = replace(about, file=number, files=total)
        write_parquet(folder / f"{number:05d}.parquet", of_one_file(), schema, rows_per_file, one)


Writer = Callable[[Path, Iterable[pa.Table], pa.Schema, int, About], None]
WRITERS: dict[str, Writer] = {".parquet": write_parquet, ".npy": write_npy, ".csv": write_csv}


def embedding_size(schema: pa.Schema) -> int:
    return int(schema.field("embedding").type.list_size)


def embeddings_of(table: pa.Table | pa.RecordBatch) -> np.ndarray:
    """(rows, D), float32 or float16 as they were written."""
    column = table.column("embedding")
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(column, pa.ChunkedArray):  # combine_chunks of no chunk
        return np.empty((0, column.type.list_size), column.type.value_type.to_pandas_dtype())
    return np.asarray(column.flatten()).reshape(len(column), column.type.list_size)


class EmbeddingFile:
    """Embeddings that `carl embed` wrote, read in pieces: a Parquet file, a folder of them, or a pattern."""

    def __init__(self, path: Path, root: str | None = None, shown: str | None = None) -> None:
        """Names that begin with the folder `root` are shown as beginning with `shown`."""
        self.path = path
        self._root = None if root is None else name_as_text(root)
        self._shown = None if shown is None else name_as_text(shown)
        self._files = sorted(map(_OneFile, _files_at(path)), key=lambda one: one.about.file)
        self.about = self._files[0].about
        self._check_that_files_belong_together()

    def _check_that_files_belong_together(self) -> None:
        """All must be from one call of `carl embed`, and of a folder none may be missing."""
        of_first = replace(self.about, file=0)
        for one in self._files:
            if replace(one.about, file=0) != of_first or one.schema != self._files[0].schema:
                raise UserError(
                    f"{one.path} and {self._files[0].path} are not from the same call of carl embed; give files of one"
                )
        numbers = [one.about.file for one in self._files]
        twice = next((n for n, (first, second) in enumerate(pairwise(numbers)) if first == second), None)
        if twice is not None:
            raise UserError(f"{self._files[twice + 1].path} has the rows of {self._files[twice].path}; give it once")
        if self.path.is_dir() and len(numbers) < self.about.files:
            missing = next(number for number in count() if number not in numbers)
            raise UserError(
                f"{self.path} lacks {missing:05d}.parquet, one of {self.about.files} files; put it back, or make all "
                f"again with: carl embed RUN IMAGES -o {self.path.name} --force"
            )

    @property
    def size(self) -> int:
        """Numbers per embedding."""
        return embedding_size(self._files[0].schema)

    def __len__(self) -> int:
        return sum(map(len, self._files))

    @property
    def columns(self) -> list[str]:
        return list(self._files[0].schema.names)

    def batches(self) -> Iterator[np.ndarray]:
        """The embeddings (rows, D) float32, some thousands at a time."""
        for one in self._files:
            yield from one.batches()

    def embeddings(self) -> np.ndarray:
        return np.concatenate(list(self.batches()))

    def names(self) -> list[str]:
        """Names of the images, as the user would write them."""
        names = [str(name) for name in self.column("path")]
        if self._root is None or self._shown is None:
            return names
        return [self._shown + name.removeprefix(self._root) if name.startswith(self._root) else name for name in names]

    def column(self, name: str) -> list[object]:
        return [value for one in self._files for value in one.column(name)]

    def file_of(self, name: str) -> Path | None:
        """Where the image of that name is, if it is there; None for a name that leads out of what was embedded.

        Names come from whoever made the images: those in a Parquet data set may be any text, and are not paths to us.
        Names that are shown are relative to the present folder.
        """
        name = name_from_text(name)
        base = Path.cwd() if self._shown is not None else Path(self.about.base)
        path = base / name
        if name.startswith("~") and not os.path.lexists(path):
            path = base / expanded(name)
        source = Path(self.about.source)
        within = source.is_absolute() and path.parts[: len(source.parts)] == source.parts
        return path if within and ".." not in path.parts[len(source.parts) :] else None


class _OneFile:
    """One Parquet file of embeddings."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            files.open_regular(path).close()  # pyarrow would wait at a pipe
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
            written = TypeAdapter(About).validate_json(self._file.schema_arrow.metadata[_ABOUT])
            self.about = _with_names(written, name_from_text)
        except DAMAGED:
            raise UserError(f"{path} holds no embeddings; make it with: carl embed RUN IMAGES -o {path.name}") from None
        if self.about.version != VERSION:
            raise UserError(
                f"{path} has format {self.about.version!r} and this version of carl reads format {VERSION}; make it "
                f"again with: carl embed RUN IMAGES -o {path.name} --force"
            )
        if wrong := self._what_is_wrong():
            raise self._damaged(wrong)

    @property
    def schema(self) -> pa.Schema:
        return self._file.schema_arrow.remove_metadata()

    def _what_is_wrong(self) -> str:
        """Why the columns cannot be those that `carl embed` writes; empty if they can."""
        schema = self.schema
        if not {"path", "embedding"} <= set(schema.names):
            return "a column is missing"
        kind = schema.field("embedding").type
        if not pa.types.is_fixed_size_list(kind) or kind.value_type not in DTYPES.values() or kind.list_size < 1:
            return f"its embeddings are {kind}, not lists of one length of float"
        for name, wanted in column_types().items():
            if name in schema.names and schema.field(name).type != wanted:
                return f"its column {name} is {schema.field(name).type}, not {wanted}"
        if not 0 <= self.about.file < self.about.files:
            return f"it is file {self.about.file} of {self.about.files}"
        if self._file.metadata.num_rows < 1:  # a damaged file may state fewer than none
            return "it has no rows"
        stated = len(self) * kind.list_size * kind.value_type.bit_width // 8
        if stated > max(ALWAYS_READ, MOST_PACKED * self.path.stat().st_size):
            return f"its {stated} bytes of embeddings are packed into {self.path.stat().st_size}"
        return ""

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def batches(self) -> Iterator[np.ndarray]:
        try:
            for group in range(self._file.num_row_groups):
                numbers = embeddings_of(self._file.read_row_group(group, columns=["embedding"]))
                numbers = numbers.astype(np.float32, copy=False)
                if not (np.abs(numbers) < LARGEST).all():
                    raise ValueError("an embedding has a number that is not finite")
                yield numbers
        except DAMAGED as error:
            raise self._damaged(first_line(error)) from None

    def column(self, name: str) -> list[object]:
        values: list[object] = []
        try:
            for batch in self._file.iter_batches(rows_at_once(self._file, self.path), columns=[name]):
                if batch.column(0).null_count and name not in _WITH_GAPS:
                    raise ValueError(f"the column {name} has gaps")
                found = batch.column(0).to_pylist()
                if any(isinstance(value, str) and len(value) > LONGEST_TEXT for value in found):
                    raise ValueError(f"a text in the column {name} is longer than {LONGEST_TEXT} letters")
                values += found
        except DAMAGED as error:
            raise self._damaged(first_line(error)) from None
        return values

    def _damaged(self, reason: str) -> UserError:
        return UserError(
            f"{self.path} is damaged ({reason}); make it again with: carl embed RUN IMAGES -o FILE --force"
        )


def holds_embeddings(path: Path) -> bool:
    try:
        files.open_regular(path).close()
        return _ABOUT in (pq.read_schema(path).metadata or {})
    except DAMAGED:
        return False


def find_embeddings(images: str) -> Path | None:
    """Where the embeddings are, if `images` names what `carl embed` wrote: a file, a folder of files, or a pattern."""
    path = expanded(images)
    if path.is_dir():
        return path if is_folder_of_embeddings(path) else None
    if path.suffix.lower() != ".parquet" or "://" in images:
        return None
    first = path if path.is_file() else next(iter(_matching(path)), None)
    return path if first is not None and first.is_file() and holds_embeddings(first) else None


def is_folder_of_embeddings(path: Path) -> bool:
    """Whether a folder holds files of embeddings and nothing else: one with a single image is a folder of images."""
    found = 0
    with os.scandir(path) as entries:
        for entry in entries:  # the first photo ends it, of however many
            if not (entry.name.endswith(".parquet") and entry.is_file() and holds_embeddings(Path(entry.path))):
                return False
            found += 1
    return found > 0


def _files_at(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.suffix == ".parquet")
    return [path] if path.is_file() else _matching(path) or [path]


def _matching(path: Path) -> list[Path]:
    """The files that a pattern such as embeddings/{00000..00003}.parquet stands for."""
    if not any(sign in str(path) for sign in "{*?["):
        return []
    try:
        return [Path(one) for one in expand(str(path))]
    except UserError:
        return []
