"""Embeddings as files: Parquet, NumPy or CSV, written row group by row group and read back the same way."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from carl import files
from carl.errors import UserError
from carl.user_paths import expanded

VERSION = 1  # of the format: what a file says about itself, and its rows
_ABOUT = b"carl"  # key of the metadata
LARGEST = 1e15  # of a feature: squares of such numbers can still be added up in float32
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


def one_line(text: str) -> str:
    """`text` with escapes for whatever would end a line, or change a terminal."""
    return re.sub("[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda at: ascii(at[0])[1:-1], text)


def _with_names(about: About, change: Callable[[str], str]) -> About:
    run, source, base = map(change, (about.run, about.source, about.base))
    return replace(about, run=run, source=source, base=base, class_names=tuple(map(change, about.class_names)))


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
    """The embeddings (N, D) float32; `rows_file` has the other columns, one line per row."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, embedding_size(schema))}
    with files.atomic_writer(output) as file, files.atomic_writer(rows_file(output)) as beside:
        np.lib.format.write_array_header_1_0(file, header)
        others = schema.remove(schema.get_field_index("embedding"))
        with pyarrow.csv.CSVWriter(beside, others) as writer:
            for table in tables:
                file.write(embeddings_of(table).astype("<f4").tobytes())
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


Writer = Callable[[Path, Iterable[pa.Table], pa.Schema, int, About], None]
WRITERS: dict[str, Writer] = {".parquet": write_parquet, ".npy": write_npy, ".csv": write_csv}


def embedding_size(schema: pa.Schema) -> int:
    return int(schema.field("embedding").type.list_size)


def embeddings_of(table: pa.Table | pa.RecordBatch) -> np.ndarray:
    """(rows, D) float32."""
    column = table.column("embedding")
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(column, pa.ChunkedArray):  # combine_chunks of no chunk
        return np.empty((0, column.type.list_size), np.float32)
    return np.asarray(column.flatten()).reshape(len(column), column.type.list_size)


class EmbeddingFile:
    """A Parquet file of embeddings, read in pieces."""

    def __init__(self, path: Path, root: str | None = None, shown: str | None = None) -> None:
        """Names that begin with the folder `root` are shown as beginning with `shown`."""
        self.path = path
        self._root = None if root is None else name_as_text(root)
        self._shown = None if shown is None else name_as_text(shown)
        try:
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

    def _what_is_wrong(self) -> str:
        """Why the columns cannot be those that `carl embed` writes; empty if they can."""
        schema = self._file.schema_arrow
        if not {"path", "embedding"} <= set(schema.names):
            return "a column is missing"
        kind = schema.field("embedding").type
        if not pa.types.is_fixed_size_list(kind) or kind.value_type != pa.float32() or kind.list_size < 1:
            return f"its embeddings are {kind}, not lists of one length of float"
        if schema.field("path").type != pa.string():
            return "its paths are not text"
        return "" if len(self) else "it has no rows"

    @property
    def size(self) -> int:
        """Numbers per embedding."""
        return embedding_size(self._file.schema_arrow)

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    @property
    def columns(self) -> list[str]:
        return list(self._file.schema_arrow.names)

    def batches(self) -> Iterator[np.ndarray]:
        """The embeddings, some thousands at a time."""
        try:
            for group in range(self._file.num_row_groups):
                numbers = embeddings_of(self._file.read_row_group(group, columns=["embedding"]))
                if not (np.abs(numbers) < LARGEST).all():
                    raise ValueError("an embedding has a number that is not finite")
                yield numbers
        except DAMAGED as error:
            raise self._damaged(reason_of(error)) from None

    def embeddings(self) -> np.ndarray:
        return np.concatenate(list(self.batches()))

    def names(self) -> list[str]:
        """Names of the images, as the user would write them."""
        names = [str(name) for name in self.column("path")]
        if self._root is None or self._shown is None:
            return names
        return [self._shown + name.removeprefix(self._root) if name.startswith(self._root) else name for name in names]

    def column(self, name: str) -> list[object]:
        try:
            values: list[object] = self._file.read(columns=[name]).column(name).to_pylist()
        except DAMAGED as error:
            raise self._damaged(reason_of(error)) from None
        return values

    def _damaged(self, reason: str) -> UserError:
        return UserError(
            f"{self.path} is damaged ({reason}); make it again with: carl embed RUN IMAGES -o FILE --force"
        )

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


def reason_of(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def holds_embeddings(path: Path) -> bool:
    try:
        return _ABOUT in (pq.read_schema(path).metadata or {})
    except DAMAGED:
        return False
