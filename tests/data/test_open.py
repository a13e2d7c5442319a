"""The one door: every kind of source opens, for training and for embedding, and a new one is a line in SOURCES."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import carl as package
from carl.config import DataConfig
from carl.data import SOURCES, Dataset, open_dataset, open_images
from carl.data.configured import load_data
from carl.data.listing import ArraySplit, Listing
from carl.data.open import absolute_source
from carl.data.sources.base import Request, Source, is_file
from carl.errors import UserError
from tests.conftest import SMALL, Run
from tests.data.test_stream import write_tar

PIXELS = np.random.default_rng(0).integers(0, 256, (11, 12, 12, 3), np.uint8)


def encoded(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def make_pattern(folder: Path) -> str:
    write_tar(folder / "000.tar", range(5))
    write_tar(folder / "001.tar", range(5, 11))
    return f"{folder}/{{000..001}}.tar"


def make_tar(folder: Path) -> Path:
    write_tar(folder / "one.tar", range(11))
    return folder / "one.tar"


def make_folder_of_tars(folder: Path) -> Path:
    make_pattern(folder)
    return folder


def make_address(folder: Path) -> str:
    make_pattern(folder)
    for path in folder.glob("*.tar"):
        fsspec.filesystem("memory").pipe(f"/{folder.name}/{path.name}", path.read_bytes())
    return f"memory://{folder.name}/*.tar"


def make_folder(folder: Path) -> Path:
    for number, pixels in enumerate(PIXELS):
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    return folder


def make_parquet(folder: Path) -> Path:
    pq.write_table(pa.table({"image": [encoded(pixels) for pixels in PIXELS]}), folder / "x.parquet")
    return folder / "x.parquet"


def make_folder_of_parquet(folder: Path) -> Path:
    make_parquet(folder)
    return folder


def make_npy(folder: Path) -> Path:
    np.save(folder / "x.npy", PIXELS)
    return folder / "x.npy"


def make_npz(folder: Path) -> Path:
    np.savez(folder / "x.npz", images=PIXELS)
    return folder / "x.npz"


PACKED = [make_folder, make_parquet, make_folder_of_parquet, make_npy, make_npz]
STREAMED = [make_pattern, make_tar, make_folder_of_tars, make_address]
Maker = Callable[[Path], Any]


@pytest.mark.parametrize("make", [*PACKED, *STREAMED])
def test_every_kind_of_source_opens_for_training(make: Maker, tmp_path: Path):
    dataset = package.open_dataset(make(tmp_path))
    assert dataset.training_images == 11
    assert dataset.views_from == ("stream" if make in STREAMED else "packed")
    assert dataset.train.images.channels == 3


def test_a_name_and_a_python_data_set_open(tmp_path: Path):
    assert package.open_dataset("shapes").training_images == 10_000
    assert package.open_dataset(list(PIXELS)).training_images == 11


@pytest.mark.parametrize("make", [*PACKED, *STREAMED])
def test_every_kind_of_source_opens_for_embedding(make: Maker, tmp_path: Path):
    source = open_images(make(tmp_path))
    names = [image.name for _, image in source.read()]
    assert source.count == len(set(names)) == 11
    assert [image.name for _, image in source.read(7)] == names[7:]
    assert open_images(make(tmp_path)).name == source.name


def test_images_in_shards_are_called_by_shard_and_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_pattern(tmp_path)
    monkeypatch.chdir(tmp_path.parent)
    names = [image.name for _, image in open_images(f"{tmp_path.name}/{{000..001}}.tar").read()]
    places = [f"000.tar#{place}" for place in range(5)] + [f"001.tar#{place}" for place in range(6)]
    assert names == [f"{tmp_path.name}/{place}" for place in places]


def test_one_image_is_a_source(tmp_path: Path):
    make_folder(tmp_path)
    ((_, image),) = open_images(tmp_path / "03.png").read()
    assert image.name == str(tmp_path / "03.png")
    np.testing.assert_array_equal(open_dataset(tmp_path / "03.png").train.images.pixels, PIXELS[3:4])


@pytest.mark.parametrize("make", [make_folder_of_parquet, make_folder_of_tars])
def test_a_folder_of_shards_can_be_streamed_and_packed(make: Maker, tmp_path: Path):
    streamed = open_dataset(make(tmp_path), views_from="stream")
    packed = open_dataset(tmp_path, views_from="packed")
    assert (streamed.views_from, packed.views_from) == ("stream", "packed")
    assert len(packed.train) == streamed.training_images == 11


def test_a_configuration_opens_what_open_dataset_opens(tmp_path: Path):
    source = make_pattern(tmp_path)
    configured = load_data(DataConfig(source=source, image_size=8))
    opened = open_dataset(source, image_size=8)
    assert configured.fingerprint == opened.fingerprint
    assert configured.stream == opened.stream
    assert configured.train.names == opened.train.names


@pytest.mark.parametrize(
    ("cut", "complaint"), [({"limit": 4}, "data.limit=4"), ({"held_out": 2}, "data.held_out=2"), ({}, "no labels")]
)
def test_what_needs_all_images_at_hand_is_refused_for_a_stream(cut: dict[str, int], complaint: str, tmp_path: Path):
    with pytest.raises(UserError, match=complaint):
        load_data(DataConfig(source=make_pattern(tmp_path), **cut), None if cut else "supervised")


def test_an_archive_left_beside_photos_does_not_make_them_shards(tmp_path: Path):
    make_folder(tmp_path)
    write_tar(tmp_path / "0-download.tar", range(3))
    assert open_dataset(tmp_path).views_from == "packed"
    assert open_images(tmp_path).count == 11


@pytest.mark.parametrize("make", [make_npy, make_tar])
def test_views_can_be_cut_from_photos_only_of_a_folder_of_files(make: Maker, tmp_path: Path):
    with pytest.raises(UserError, match="needs a folder of colour images"):
        open_dataset(make(tmp_path), views_from="photos")


def test_a_python_data_set_is_no_stream():
    with pytest.raises(UserError, match="needs shards, and a list has none"):
        open_dataset(list(PIXELS), views_from="stream")


def test_sources_are_named_in_full_for_a_run_that_may_be_resumed_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert absolute_source("cifar10") == "cifar10"
    assert absolute_source("03.png") == str(tmp_path / "03.png")
    assert absolute_source("{0..3}.tar") == str(tmp_path / "{0..3}.tar")
    assert absolute_source("~/{0..3}.tar") == str(tmp_path / "home" / "{0..3}.tar")
    assert absolute_source("s3://bucket/{0..3}.tar") == "s3://bucket/{0..3}.tar"
    assert absolute_source("nothing") == "nothing"


# A source from outside of the package


def list_toy(asked: Request) -> Listing:
    """Dark and bright squares, or the pixels of a .toy file: a byte each."""
    values = range(48) if asked.path is None else asked.place.read_bytes()

    def read() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for value in values:
            yield np.full((1, 16, 16, 3), 5 * value % 256, np.uint8), np.array([value % 2])

    return Listing(asked.name, "toy", {"train": ArraySplit(len(values), read)}, class_names=("even", "odd"))


@pytest.fixture
def _toys(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Source("Squares of 48 shades, to play with.", list_toy)
    file = Source("Shades, a byte each.", list_toy, lambda path: is_file(path, ".toy"), known_by_name=False)
    monkeypatch.setitem(SOURCES, "toy", toy)
    monkeypatch.setitem(SOURCES, "FILE.toy", file)


@pytest.mark.usefixtures("_toys")
def test_a_source_added_from_outside_works_in_every_command(carl: Run, tmp_path: Path):
    listed = carl("data", "list")
    assert "Squares of 48 shades, to play with." in listed.stdout
    info = carl("data", "info", "toy")
    assert info.returncode == 0, info.stderr
    assert "48 images, 24 per class" in info.stdout
    trained = carl("pretrain", "toy", *SMALL, "--out", "run")
    assert trained.returncode == 0, trained.stderr
    embedded = carl("embed", "run", "toy", "-o", "e.parquet")
    assert embedded.returncode == 0, embedded.stderr
    table = pq.read_table(tmp_path / "e.parquet")
    assert table.column("path").to_pylist() == [f"train#{number}" for number in range(48)]
    assert table.column("label").to_pylist() == [number % 2 for number in range(48)]


@pytest.mark.usefixtures("_toys")
def test_a_kind_of_file_added_from_outside_is_recognised(tmp_path: Path):
    (tmp_path / "x.toy").write_bytes(bytes([0, 1, 2]))
    dataset: Dataset = open_dataset(tmp_path / "x.toy")
    assert dataset.train.images.pixels[:, 0, 0, 0].tolist() == [0, 5, 10]
    assert [image.name for _, image in open_images(tmp_path / "x.toy").read()] == ["x.toy#0", "x.toy#1", "x.toy#2"]
