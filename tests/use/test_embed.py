"""Embeddings are evaluation's features, in the order of the input, and survive being stopped."""

from __future__ import annotations

import csv
import io
import json
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import carl
from carl.data import open_dataset
from carl.data.image_source import ImageSource
from carl.data.listing import ArraySplit
from carl.data.open import open_images
from carl.errors import UserError
from carl.evaluation.features import extract_features
from carl.methods import METHODS
from carl.methods.run_config import read_config
from carl.quality import measures
from carl.records.run_directory import RunDirectory
from carl.terminal import silent
from carl.use import embed as embed_module
from carl.use.embed import embed
from carl.use.embedding_files import EmbeddingFile, embeddings_of
from carl.use.embedding_parts import Parts
from carl.use.encoder import TrainedModel, load_trained
from carl.use.search import search, write_sheet
from tests.conftest import Run
from tests.methods.examples import SMALL
from tests.reliability.conftest import assert_refused, listed
from tests.use.conftest import QUICK


def features_of(trained: TrainedModel, small_data: Path) -> np.ndarray:
    dataset = open_dataset(small_data)
    size = trained.data.image_size
    return extract_features(trained.method.encoder, dataset.train, dataset.statistics, size, trained.device).numpy()


def written(trained: TrainedModel, images: str | Path, output: Path) -> pa.Table:
    embed(trained, open_images(str(images)), output)
    return pq.read_table(output)


def test_rows_are_the_features_of_evaluation_in_the_order_of_the_input(
    trained: TrainedModel, small_data: Path, folder: Path, tmp_path: Path
):
    table = written(trained, folder, tmp_path / "e.parquet")
    names = [f"{folder}/part {n // 50}/{n:03d}.png" for n in range(96)]
    assert table.column("path").to_pylist() == names
    np.testing.assert_allclose(embeddings_of(table), features_of(trained, small_data), atol=1e-5)


def test_prototype_probability_and_entropy_are_those_of_the_assignment(
    trained: TrainedModel, folder: Path, pixels: np.ndarray, tmp_path: Path
):
    table = written(trained, folder, tmp_path / "e.parquet")
    with torch.no_grad():
        log_p = trained.method.log_assignments(trained.views(pixels))
    assert log_p is not None
    p = log_p.double().exp().numpy()
    chosen = p.argmax(1)
    assert len(set(chosen)) > 1
    assert table.column("prototype").to_pylist() == chosen.tolist()
    np.testing.assert_allclose(table.column("probability"), p.max(1), atol=1e-5)
    np.testing.assert_allclose(table.column("entropy"), -(p * np.log(p)).sum(1), atol=1e-4)


def test_a_method_without_prototypes_gives_embeddings_alone(simclr_run: Path, folder: Path, tmp_path: Path):
    table = written(load_trained(simclr_run), folder, tmp_path / "e.parquet")
    assert table.column_names == ["path", "embedding", *measures()]
    assert len(table) == 96


def test_the_training_data_may_be_gone(run: Path, folder: Path, small_data: Path, tmp_path: Path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    text = (copy / "config.toml").read_text().replace(str(small_data), str(tmp_path / "gone.npz"))
    (copy / "config.toml").write_text(text)
    assert len(written(load_trained(copy), folder, tmp_path / "e.parquet")) == 96


def test_a_run_from_before_data_json_reads_its_data_again(run: Path, trained: TrainedModel, tmp_path: Path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / "data.json").unlink()
    assert load_trained(copy).data == trained.data


@pytest.mark.parametrize("kind", ["npy", "npz", "parquet", "image"])
def test_other_sources_give_the_same_embeddings(
    trained: TrainedModel, small_data: Path, folder: Path, pixels: np.ndarray, kind: str, tmp_path: Path
):
    expected = features_of(trained, small_data)
    if kind == "npy":
        source = tmp_path / "pixels.npy"
        np.save(source, pixels)
        names = [f"pixels.npy#{n}" for n in range(96)]
    elif kind == "npz":
        source = small_data
        names = [f"train#{n}" for n in range(96)] + [f"test#{n}" for n in range(32)]
    elif kind == "parquet":
        source = tmp_path / "images.parquet"
        encoded = [path.read_bytes() for path in sorted(folder.rglob("*.png"))]
        pq.write_table(pa.table({"image": encoded, "label": list(range(96))}), source)
        names = [f"images.parquet#{n}" for n in range(96)]
    else:
        source = folder / "part 0" / "000.png"
        names, expected = [str(source)], expected[:1]
    table = written(trained, source, tmp_path / "e.parquet")
    assert table.column("path").to_pylist() == names
    np.testing.assert_allclose(embeddings_of(table)[:96], expected, atol=1e-5)
    if kind == "parquet":
        assert table.column("label").to_pylist() == list(range(96))
    if kind == "npz":
        assert table.column("split").to_pylist() == ["train"] * 96 + ["test"] * 32


def test_a_split_can_be_chosen_and_an_unknown_one_is_refused(trained: TrainedModel, small_data: Path, tmp_path: Path):
    embed(trained, open_images(str(small_data), "test"), tmp_path / "e.parquet")
    assert len(pq.read_table(tmp_path / "e.parquet")) == 32
    with pytest.raises(UserError, match="no split 'tst'; did you mean 'test'"):
        open_images(str(small_data), "tst")


def test_images_of_another_size_are_cut_and_scaled_as_for_training(
    trained: TrainedModel, pixels: np.ndarray, tmp_path: Path
):
    from PIL import Image

    (tmp_path / "wide").mkdir()
    large = Image.fromarray(pixels[0]).resize((128, 96))
    large.save(tmp_path / "wide" / "a.png")
    large.crop((16, 0, 112, 96)).save(tmp_path / "wide" / "b.png")  # its middle square
    rows = embeddings_of(written(trained, tmp_path / "wide", tmp_path / "e.parquet"))
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-2 * np.abs(rows[0]).max())


def test_bad_files_have_no_row_and_are_listed(carl: Run, run: Path, folder: Path, tmp_path: Path):
    shutil.copytree(folder, tmp_path / "photos")
    (tmp_path / "photos" / "part 0" / "000.png").write_bytes(b"no image")
    (tmp_path / "photos" / "zero.jpg").touch()
    done = carl("embed", run, "photos", "-o", "e.parquet")
    assert done.returncode == 0, done.stderr
    assert "2 images cannot be used" in done.stdout
    names = pq.read_table(tmp_path / "e.parquet").column("path").to_pylist()
    assert len(names) == 95
    assert names[0] == "photos/part 0/001.png"
    listed = (tmp_path / "e.parquet.bad-files.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in listed] == ["photos/part 0/000.png", "photos/zero.jpg"]
    assert all(line.split("\t")[1] for line in listed)


def test_only_bad_files_are_an_error_and_leave_nothing(carl: Run, run: Path, tmp_path: Path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes(b"no image")
    done = carl("embed", run, "photos", "-o", "e.parquet")
    assert done.returncode == 2
    assert "none of the 1 images can be used: photos/a.png: not an image" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_images_of_other_channels_are_bad(trained: TrainedModel, pixels: np.ndarray, tmp_path: Path):
    np.save(tmp_path / "grey.npy", pixels[..., 0])
    with pytest.raises(UserError, match="1 channels where the encoder reads 3"):
        written(trained, tmp_path / "grey.npy", tmp_path / "e.parquet")


def test_npy_and_csv_hold_the_same_numbers(trained: TrainedModel, folder: Path, tmp_path: Path):
    table = written(trained, folder, tmp_path / "e.parquet")
    source = open_images(str(folder))
    embed(trained, source, tmp_path / "e.npy")
    embed(trained, source, tmp_path / "e.csv")
    numbers = np.load(tmp_path / "e.npy", allow_pickle=False)
    assert np.array_equal(numbers, embeddings_of(table))
    with open(tmp_path / "e.rows.csv", newline="") as file:
        assert [row["path"] for row in csv.DictReader(file)] == table.column("path").to_pylist()
    with open(tmp_path / "e.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["prototype"]) for row in rows] == table.column("prototype").to_pylist()
    size = numbers.shape[1]
    read = np.array([[row[f"e{i}"] for i in range(size)] for row in rows], np.float32)
    np.testing.assert_allclose(read, numbers, rtol=1e-6)


class Killed(BaseException):
    """Stands for a signal that no one handles."""


def stop_after(monkeypatch: pytest.MonkeyPatch, batches: int) -> list[int]:
    """Let `TrainedModel.represent` work for so many batches only; returns the sizes of the batches it saw."""
    seen: list[int] = []
    whole = TrainedModel.represent

    def represent(self: TrainedModel, pixels: np.ndarray) -> object:
        if len(seen) == batches:
            raise Killed
        seen.append(len(pixels))
        return whole(self, pixels)

    monkeypatch.setattr(TrainedModel, "represent", represent)
    return seen


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed_module, "PART", 16)
    monkeypatch.setattr(embed_module, "FEATURE_BATCH", 8)


@pytest.mark.usefixtures("small_parts")
def test_stopped_work_goes_on_with_no_row_lost_or_doubled(
    trained: TrainedModel, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = open_images(str(folder))
    embed(trained, source, tmp_path / "whole.parquet")
    with monkeypatch.context() as patch:
        stop_after(patch, 7)  # in the middle of the fourth part
        with pytest.raises(Killed):
            embed(trained, source, tmp_path / "e.parquet")
    assert not (tmp_path / "e.parquet").exists()
    (tmp_path / "e.parquet.parts" / ".000003.parquet.x.partial").write_bytes(b"half")  # as a kill leaves it
    with monkeypatch.context() as patch:
        seen = stop_after(patch, 1000)
        done = embed(trained, source, tmp_path / "e.parquet")
    assert (done.rows, done.resumed, sum(seen)) == (96, 48, 48)
    assert pq.read_table(tmp_path / "e.parquet").equals(pq.read_table(tmp_path / "whole.parquet"))
    assert not (tmp_path / "e.parquet.parts").exists()


def flip(path: Path, part: bytes) -> None:
    """Change one bit of a file, in the middle of where these bytes are in it."""
    content = bytearray(path.read_bytes())
    content[content.index(part) + len(part) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path, part: bytes) -> None:
    path.write_bytes(path.read_bytes()[:-50])


def gone(path: Path, part: bytes) -> None:
    path.unlink()


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("damage", [flip, cut, gone])
def test_a_part_that_is_damaged_is_made_again(
    trained: TrainedModel,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path, bytes], None],
):
    source = open_images(str(folder))
    embed(trained, source, tmp_path / "whole.parquet")
    whole = pq.read_table(tmp_path / "whole.parquet")
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(Killed):
            embed(trained, source, tmp_path / "e.parquet")
    damage(tmp_path / "e.parquet.parts" / "000001.parquet", embeddings_of(whole)[20].tobytes())
    done = embed(trained, source, tmp_path / "e.parquet")
    assert (done.rows, done.resumed) == (96, 16)
    assert pq.read_table(tmp_path / "e.parquet").equals(whole)


@pytest.mark.usefixtures("small_parts")
def test_a_part_damaged_before_the_end_is_named_and_made_again_by_the_next_call(
    trained: TrainedModel, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = open_images(str(folder))
    embed(trained, source, tmp_path / "whole.parquet")
    whole = pq.read_table(tmp_path / "whole.parquet")
    plain = Parts.write

    def write(parts: Parts, number: int, *arguments: Any) -> None:
        plain(parts, number, *arguments)
        if number == 5:
            flip(parts.folder / "000001.parquet", embeddings_of(whole)[20].tobytes())

    with monkeypatch.context() as patch:
        patch.setattr(Parts, "write", write)
        with pytest.raises(UserError, match=r"000001\.parquet is damaged .* give the command again"):
            embed(trained, source, tmp_path / "e.parquet")
    assert not (tmp_path / "e.parquet").exists()
    assert embed(trained, source, tmp_path / "e.parquet").resumed == 16
    assert pq.read_table(tmp_path / "e.parquet").equals(whole)


def test_a_folder_of_the_users_with_the_name_of_the_parts_stays(carl: Run, run: Path, folder: Path, tmp_path: Path):
    (tmp_path / "e.parquet.parts").mkdir()
    (tmp_path / "e.parquet.parts" / "photo.png").write_bytes(b"precious")
    done = carl("embed", run, folder, "-o", "e.parquet", "--force")
    assert done.returncode == 2
    assert "did not make" in done.stderr
    assert (tmp_path / "e.parquet.parts" / "photo.png").read_bytes() == b"precious"


def test_a_flipped_bit_in_a_file_of_embeddings_is_noticed(trained: TrainedModel, folder: Path, tmp_path: Path):
    table = written(trained, folder, tmp_path / "e.parquet")
    flip(tmp_path / "e.parquet", embeddings_of(table)[20].tobytes())
    with pytest.raises(UserError, match=r"e\.parquet is damaged"):
        EmbeddingFile(tmp_path / "e.parquet").embeddings()


@pytest.mark.parametrize("value", [{"base": 5}, {"source": None}, {"run": []}, {"class_names": 3}, {"weights": {}}])
def test_a_file_of_embeddings_that_says_nonsense_of_itself_is_refused(
    trained: TrainedModel, folder: Path, tmp_path: Path, value: dict[str, Any]
):
    table = written(trained, folder, tmp_path / "e.parquet")
    about = {**json.loads(table.schema.metadata[b"carl"]), **value}
    pq.write_table(table.replace_schema_metadata({b"carl": json.dumps(about)}), tmp_path / "e.parquet")
    with pytest.raises(UserError, match="holds no embeddings"):
        EmbeddingFile(tmp_path / "e.parquet")


def with_embeddings(table: pa.Table, values: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index("embedding"), "embedding", values)


def changed_number(value: float) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        numbers = embeddings_of(table).copy()
        numbers[7, 3] = value
        flat = pa.array(numbers.reshape(-1))
        return with_embeddings(table, pa.FixedSizeListArray.from_arrays(flat, numbers.shape[1]))

    return change


def fewer_numbers(table: pa.Table) -> pa.Table:
    numbers = np.ascontiguousarray(embeddings_of(table)[:, :5])
    return with_embeddings(table, pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), 5))


NOT_EMBEDDINGS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "no rows": lambda table: table.slice(0, 0),
    "other dimensions": fewer_numbers,
    "strings": lambda table: with_embeddings(table, pa.array(["text"] * len(table))),
    "lists of strings": lambda table: with_embeddings(
        table, pa.FixedSizeListArray.from_arrays(pa.array(["text"] * 4 * len(table)), 4)
    ),
    "lists of any length": lambda table: with_embeddings(
        table, pa.array([[1.0] * (row % 3) for row in range(len(table))], pa.list_(pa.float32()))
    ),
    "no column of paths": lambda table: table.drop_columns("path"),
    "missing embeddings": lambda table: with_embeddings(
        table, pa.array([None, *table.column("embedding").to_pylist()[1:]], table.schema.field("embedding").type)
    ),
    "no column of embeddings": lambda table: table.drop_columns("embedding"),
    "paths that are numbers": lambda table: table.set_column(0, "path", pa.array(range(len(table)))),
    "nan": changed_number(float("nan")),
    "infinity": changed_number(float("inf")),
    "numbers whose squares are infinite": changed_number(1e30),
}


@pytest.mark.parametrize("kind", NOT_EMBEDDINGS)
def test_a_file_with_other_content_than_embeddings_is_refused_in_one_line(
    carl: Run, run: Path, trained: TrainedModel, folder: Path, tmp_path: Path, kind: str
):
    table = written(trained, folder, tmp_path / "e.parquet")
    changed = NOT_EMBEDDINGS[kind](table)
    assert changed.schema.metadata
    pq.write_table(changed, tmp_path / "e.parquet")
    for arguments in (("search", folder / "part 0" / "003.png"), ("curate", "--keep", "3")):
        done = carl(arguments[0], run, "e.parquet", *arguments[1:])
        assert_refused(done, ["e.parquet", "carl embed"])


@pytest.mark.parametrize("counted", [(True, True), (False, False), (True, False), (False, True)])
def test_images_are_read_from_any_number_on_whether_splits_know_their_length_or_not(counted: tuple[bool, bool]):
    def blocks(first: int) -> Iterator[tuple[np.ndarray, None]]:
        yield from ((np.full((size, 2, 2, 3), first, np.uint8), None) for size in (3, 2))

    splits = {
        name: ArraySplit(5 if known else 0, partial(blocks, number))
        for number, (name, known) in enumerate(zip(("train", "test"), counted, strict=True))
    }
    source = ImageSource("numbers", "key", splits, by_split=True)
    names = [image.name for _, image in source.read()]
    assert names == [f"{split}#{number}" for split in ("train", "test") for number in range(5)]
    for start in range(12):
        assert [image.name for _, image in source.read(start)] == names[start:]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("change", ["images", "weights"])
def test_parts_of_other_images_or_weights_are_not_gone_on_with(
    run: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
):
    shutil.copytree(folder, tmp_path / "photos")
    shutil.copytree(run, tmp_path / "run")
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(Killed):
            embed(load_trained(tmp_path / "run"), open_images(str(tmp_path / "photos")), tmp_path / "e.parquet")
    if change == "images":
        (tmp_path / "photos" / "part 0" / "000.png").unlink()
    else:
        (tmp_path / "run" / "encoder.safetensors").unlink()
        from carl.models.weights import write_weights

        encoder = load_trained(run).method.encoder
        torch.nn.init.zeros_(next(encoder.parameters()))
        write_weights(tmp_path / "run" / "encoder.safetensors", encoder)
    trained, source = load_trained(tmp_path / "run"), open_images(str(tmp_path / "photos"))
    done = embed(trained, source, tmp_path / "e.parquet")
    assert done.resumed == 0
    embed(trained, source, tmp_path / "fresh.parquet")
    assert pq.read_table(tmp_path / "e.parquet").equals(pq.read_table(tmp_path / "fresh.parquet"))


def test_a_file_that_exists_is_only_replaced_by_force(carl: Run, run: Path, folder: Path, tmp_path: Path):
    (tmp_path / "e.parquet").write_text("precious")
    refused = carl("embed", run, folder, "-o", "e.parquet")
    assert refused.returncode == 2
    assert "e.parquet exists" in refused.stderr
    assert (tmp_path / "e.parquet").read_text() == "precious"
    done = carl("embed", run, folder, "-o", "e.parquet", "--force")
    assert done.returncode == 0, done.stderr
    assert len(pq.read_table(tmp_path / "e.parquet")) == 96


@pytest.mark.parametrize("beside", ["e.rows.csv", "e.npy.bad-files.txt"])
def test_files_beside_the_output_are_only_replaced_by_force(
    carl: Run, run: Path, folder: Path, tmp_path: Path, beside: str
):
    (tmp_path / beside).write_text("precious")
    before = listed(tmp_path)
    refused = carl("embed", run, folder, "-o", "e.npy")
    assert refused.returncode == 2
    assert f"{beside} exists" in refused.stderr
    assert (listed(tmp_path), (tmp_path / beside).read_text()) == (before, "precious")
    done = carl("embed", run, folder, "-o", "e.npy", "--force")
    assert done.returncode == 0, done.stderr
    assert sorted(listed(tmp_path)) == ["e.npy", "e.rows.csv"]


@pytest.mark.usefixtures("small_parts")
def test_a_file_that_appeared_while_work_was_interrupted_is_only_replaced_by_force(
    trained: TrainedModel, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source, output = open_images(str(folder)), tmp_path / "e.parquet"
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(Killed):
            embed(trained, source, output)
    output.write_text("precious")
    with pytest.raises(UserError, match="exists"):
        embed(trained, source, output)
    assert output.read_text() == "precious"
    assert embed(trained, source, output, force=True).resumed == 48


@pytest.mark.usefixtures("small_parts")
def test_work_stopped_while_its_files_were_written_needs_no_force_to_go_on(
    trained: TrainedModel, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source, output = open_images(str(folder)), tmp_path / "e.npy"

    def killed(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(embed_module, "list_bad", killed)
        with pytest.raises(Killed):
            embed(trained, source, output)
    assert output.is_file()
    assert embed(trained, source, output).resumed == 96
    assert sorted(listed(tmp_path)) == ["e.npy", "e.rows.csv"]


def meanwhile(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    """Do this in a thread while the first batch of another `embed` is computed, and go on when it has ended."""
    whole, begun = TrainedModel.represent, threading.Event()

    def represent(self: TrainedModel, pixels: np.ndarray) -> object:
        if not begun.is_set():
            begun.set()
            thread = threading.Thread(target=action)  # a lock belongs to an open file: a thread stands for a process
            thread.start()
            thread.join(timeout=60)
        return whole(self, pixels)

    monkeypatch.setattr(TrainedModel, "represent", represent)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("images", ["same", "other"])
@pytest.mark.parametrize("force", [False, True])
def test_a_second_embed_into_the_same_file_is_refused_and_changes_nothing(
    trained: TrainedModel,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    images: str,
    force: bool,
):
    source = open_images(str(folder))
    embed(trained, source, tmp_path / "whole.parquet")
    second = source if images == "same" else open_images(str(folder / "part 0"))
    (tmp_path / "link.parquet").symlink_to("e.parquet")
    said: list[str] = []

    def embed_too() -> None:
        for name in ("e.parquet", "link.parquet"):
            before = listed(tmp_path)
            with pytest.raises(UserError) as refused:
                embed(trained, second, tmp_path / name, force)
            assert listed(tmp_path) == before
            said.append(str(refused.value))

    with monkeypatch.context() as patch:
        meanwhile(patch, embed_too)
        assert embed(trained, source, tmp_path / "e.parquet").rows == 96
    assert ["e.parquet is being written by another process" in words for words in said] == [True, True]
    assert pq.read_table(tmp_path / "e.parquet").equals(pq.read_table(tmp_path / "whole.parquet"))
    assert sorted(listed(tmp_path)) == ["e.parquet", "link.parquet", "whole.parquet"]


@pytest.mark.usefixtures("small_parts")
def test_rows_of_other_work_are_never_joined_even_without_a_lock(
    trained: TrainedModel, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source, other = open_images(str(folder)), open_images(str(folder / "part 0"))

    @contextmanager
    def let_in(path: Path, patience: float = 0.0) -> Iterator[bool]:
        yield True

    def embed_too() -> None:
        parts = Parts(tmp_path / "e.parquet", "key of other work")
        rows = pq.read_table(tmp_path / "other.parquet").replace_schema_metadata(None)
        parts.write(6, rows, [])

    embed(trained, other, tmp_path / "other.parquet")
    monkeypatch.setattr("carl.files.only_holder", let_in)
    meanwhile(monkeypatch, embed_too)
    with pytest.raises(UserError, match=r"000006\.parquet .* other images or weights"):
        embed(trained, source, tmp_path / "e.parquet")
    assert not (tmp_path / "e.parquet").exists()
    assert embed(trained, source, tmp_path / "e.parquet").rows == 96


@pytest.mark.parametrize("left", [["lock"], ["lock", ".key.x.partial"]])
def test_a_start_that_was_killed_does_not_block_the_next_one(
    trained: TrainedModel, folder: Path, tmp_path: Path, left: list[str]
):
    (tmp_path / "e.parquet.parts").mkdir()
    for name in left:
        (tmp_path / "e.parquet.parts" / name).touch()
    assert embed(trained, open_images(str(folder)), tmp_path / "e.parquet").rows == 96
    assert sorted(listed(tmp_path)) == ["e.parquet"]


@pytest.fixture
def shards(pixels: np.ndarray, tmp_path: Path) -> Path:
    """The first 24 images in two tar files, with their labels beside them."""
    (tmp_path / "shards").mkdir()
    for shard in range(2):
        with tarfile.open(tmp_path / "shards" / f"{shard:03d}.tar", "w") as archive:
            for number in range(12 * shard, 12 * shard + 12):
                content = io.BytesIO()
                Image.fromarray(pixels[number]).save(content, "PNG")
                for name, data in ((f"{number}.png", content.getvalue()), (f"{number}.cls", b"1")):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    return tmp_path / "shards"


@pytest.mark.usefixtures("shards")
def test_every_image_of_shards_has_a_row(carl: Run, run: Path, trained: TrainedModel, small_data: Path, tmp_path: Path):
    done = carl("embed", run, "shards/{000..001}.tar", "-o", "e.parquet", "--precision", "fp32")
    assert done.returncode == 0, done.stderr
    table = pq.read_table(tmp_path / "e.parquet")
    names = [f"shards/00{shard}.tar#{place}" for shard in range(2) for place in range(12)]
    assert table.column("path").to_pylist() == names
    np.testing.assert_allclose(embeddings_of(table), features_of(trained, small_data)[:24], atol=1e-5)


def test_embeddings_of_shards_are_searched_from_anywhere(
    carl: Run,
    run: Path,
    trained: TrainedModel,
    shards: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    query = folder / "part 0" / "017.png"
    found = carl("search", run, "shards/{000..001}.tar", query, "-k", "1")
    assert found.returncode == 0, found.stderr
    assert f"{shards}/001.tar#5" in found.stdout
    for images in (shards, "shards"):  # the second finds in the cache what the first embedded
        found = carl("search", run, images, query, "-k", "1")
        assert found.returncode == 0, found.stderr
        assert f"{images}/001.tar#5" in found.stdout
    assert carl("embed", run, "shards/{000..001}.tar", "-o", "e.parquet").returncode == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    index, answers = search(trained, "../e.parquet", [str(query)], 1, None, silent)
    write_sheet(trained, index, answers, "shards", tmp_path / "sheet.html")
    sheet = (tmp_path / "sheet.html").read_text()
    assert "shards/001.tar#5" in sheet
    assert sheet.count("data:image/png") == 2  # the query and what was found


def test_bad_input_of_embed_is_one_line(carl: Run, run: Path, folder: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    for arguments, words in [
        (("nowhere", folder), "nowhere does not exist"),
        ((run, "nowhere"), "'nowhere' is neither a data set's name nor a folder"),
        ((run, "empty"), "empty has no images"),
        ((run, folder, "-o", "e.txt"), "e.txt ends in none of .parquet, .npy, .csv"),
    ]:
        done = carl("embed", *arguments)
        assert done.returncode == 2
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_an_encoder_in_python_embeds_files_images_and_arrays(
    run: Path, trained: TrainedModel, small_data: Path, folder: Path, pixels: np.ndarray
):
    from PIL import Image

    state = torch.get_rng_state()
    encoder = carl.load_encoder(run)
    assert torch.equal(torch.get_rng_state(), state)
    expected = features_of(trained, small_data)
    np.testing.assert_allclose(encoder.embed(pixels), expected, atol=1e-5)
    mixed = [folder / "part 0" / "000.png", Image.fromarray(pixels[1]), pixels[2]]
    np.testing.assert_allclose(encoder.embed(mixed), expected[:3], atol=1e-5)
    with torch.no_grad():
        by_hand = encoder(trained.views(pixels[:4])).numpy()
    np.testing.assert_allclose(by_hand, expected[:4], atol=1e-5)
    with pytest.raises(UserError, match="cannot be used"):
        encoder.embed([folder / "none.png"])


@pytest.mark.parametrize("method", METHODS)
def test_the_encoder_of_every_method_can_be_used(method: str, small_data: Path, folder: Path, tmp_path: Path):
    settings = {f"method.{key}": value for key, value in SMALL.get(method, {}).items()}
    out = carl.pretrain(
        small_data,
        out=tmp_path / "run",
        method=method,
        backbone="test_resnet",
        epochs=2,
        batch_size=16,
        settings={**settings, **QUICK},
    )
    trained = load_trained(out)
    table = written(trained, folder, tmp_path / "e.parquet")
    np.testing.assert_allclose(embeddings_of(table), features_of(trained, small_data), atol=1e-5)
    has_prototypes = METHODS[method].probed_prototypes(read_config(RunDirectory(out))) is not None
    assert ("prototype" in table.column_names) == trained.has_prototypes == has_prototypes
