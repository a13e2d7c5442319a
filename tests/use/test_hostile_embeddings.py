"""Files of embeddings that someone else made: each is refused in one line, with no more memory than it is long."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from carl.errors import UserError
from carl.use.embedding_files import EmbeddingFile
from tests.conftest import Run
from tests.reliability.conftest import assert_refused
from tests.reliability.test_hostile import MEGABYTE, bounded

COMMANDS = {
    "search": ["search", "{run}", "{images}", "{photos}/part 0/003.png"],
    "curate": ["curate", "{run}", "{images}", "--keep", "5"],
    "group": ["group", "{run}", "{images}", "--groups", "2"],
    "look": ["report", "{run}", "{images}", "--map", "pca"],
}


@pytest.fixture
def table(carl: Run, run: Path, folder: Path, tmp_path: Path) -> pa.Table:
    assert carl("embed", run, folder, "-o", "good.parquet").returncode == 0
    return pq.read_table(tmp_path / "good.parquet")


def words_of(command: str, run: Path, folder: Path, images: str) -> list[str]:
    return [word.format(run=run, photos=folder, images=images) for word in COMMANDS[command]]


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, values)


def test_a_file_that_states_fewer_rows_than_none_is_refused(table: pa.Table, tmp_path: Path):
    file = tmp_path / "one.parquet"
    pq.write_table(table.slice(0, 1), file)
    content, one_row = (
        file.read_bytes(),
        b"\x16\x02\x19",
    )  # num_rows and the list of row groups that follows it, in Thrift
    assert content.count(one_row) == 1
    file.write_bytes(content.replace(one_row, b"\x16\x01\x19"))
    assert pq.read_metadata(file).num_rows == -1
    with pytest.raises(UserError, match="it has no rows"):
        EmbeddingFile(file)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("pattern", ["many/{{00000..00003}}.parquet", "many/*.parquet"])
def test_a_pipe_among_several_files_is_refused_at_once(
    carl: Run, run: Path, folder: Path, tmp_path: Path, command: str, pattern: str
):
    assert carl("embed", run, folder, "-o", "many", "--rows-per-file", "30").returncode == 0
    (tmp_path / "many" / "00002.parquet").unlink()
    os.mkfifo(tmp_path / "many" / "00002.parquet")
    done = carl(*words_of(command, run, folder, pattern.format()))
    assert_refused(done, ["00002.parquet holds no embeddings"])


@pytest.mark.parametrize("name", ["prototype", "brightest", "width", "looks", "content"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), "gaps"])
def test_columns_of_another_kind_are_refused(
    carl: Run, run: Path, folder: Path, tmp_path: Path, table: pa.Table, name: str, kind: pa.DataType | str
):
    own = table.schema.field(name).type
    values = pa.nulls(96, own) if kind == "gaps" else pa.array([1] * 96).cast(kind)
    pq.write_table(with_column(table, name, values), tmp_path / "bad.parquet")
    done = carl(*words_of("curate" if name == "prototype" else "look", run, folder, "bad.parquet"))
    assert_refused(done, ["bad.parquet is damaged", name])


@pytest.mark.parametrize("words", ["zz", "", "00"])
def test_qualities_that_no_image_has_are_refused(
    carl: Run, run: Path, folder: Path, tmp_path: Path, table: pa.Table, words: str
):
    pq.write_table(with_column(table, "looks", pa.array([words] * 96)), tmp_path / "bad.parquet")
    assert_refused(carl(*words_of("look", run, folder, "bad.parquet")), ["bad.parquet has qualities"])


@pytest.mark.parametrize("label", [2**62, -(2**62), -2, 2**16])
@pytest.mark.parametrize("command", ["group", "look"])
def test_labels_that_number_no_classes_are_refused(
    carl: Run, run: Path, folder: Path, tmp_path: Path, table: pa.Table, command: str, label: int
):
    labelled = table.append_column("label", pa.array([0] * 95 + [label], pa.int64()))
    pq.write_table(labelled, tmp_path / "bad.parquet")
    assert_refused(carl(*words_of(command, run, folder, "bad.parquet")), [str(label), "number the classes from 0"])


Bomb = Callable[[pa.Table], pa.Table]


def long_names(table: pa.Table) -> pa.Table:
    """One name of 16 MB that all rows share: 1.6 GB from a file of a few kilobytes."""
    return with_column(table, "path", pa.array(["x" * 2**24] * 96))


def zeros(table: pa.Table) -> pa.Table:
    """A gigabyte of zeros, which take a few kilobytes where they are packed."""
    size = table.schema.field("embedding").type.list_size
    rows = 2**30 // (4 * size)
    numbers = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * size, np.float32)), size)
    columns = {"path": pa.array(["x"] * rows), "embedding": numbers}
    return pa.table(columns).replace_schema_metadata(table.schema.metadata)


@pytest.mark.parametrize("bomb", [long_names, zeros])
def test_a_small_file_cannot_take_much_memory(tmp_path: Path, table: pa.Table, bomb: Bomb):
    pq.write_table(bomb(table), tmp_path / "bomb.parquet", compression="zstd")

    def read() -> None:
        found = EmbeddingFile(tmp_path / "bomb.parquet")
        found.names()
        found.embeddings()

    with bounded(1000 * MEGABYTE), pytest.raises(UserError, match="is damaged"):
        read()
