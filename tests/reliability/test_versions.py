"""Files say which format they are of: version 1 is read for ever, others are refused with the remedy or made anew."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from carl.data import open_dataset
from carl.data.listing import EncodedImage, EncodedSplit, Listing
from carl.data.packing import cache
from carl.records.run_directory import RUN_FORMAT, RunDirectory
from carl.training.checkpoint import load_checkpoint
from carl.use.encoder import load_trained
from tests.reliability.conftest import assert_refused, call
from tests.reliability.make_fixtures import ARCHIVE, DATA, USED
from tests.reliability.world import copy_run, encoded


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """What version 1 wrote: run/, data.npz and store/."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace(DATA, str(tmp_path)))
    return tmp_path


@pytest.fixture
def used(first: Path) -> Path:
    """The same, with the results and the gallery of the run, and a file of embeddings, as version 1 wrote them."""
    with tarfile.open(USED) as archive:
        archive.extractall(first / "run", filter="data")
    for file in (first / "run" / "results").iterdir():
        file.write_text(file.read_text().replace(DATA, str(first)))
    return first


def test_the_fixtures_are_small():
    assert ARCHIVE.stat().st_size + USED.stat().st_size < 350_000


def test_a_run_of_version_1_is_evaluated_embedded_reported_and_resumed(first: Path):
    assert json.loads((first / "run" / "environment.json").read_text())["format"] == 1
    for command in (
        ["eval", "run"],
        ["embed", "run", "data.npz", "-o", "made.parquet"],
        ["report", "run"],
        ["export", "run", "--to", "safetensors", "-o", "made.safetensors"],
        ["pretrain", "--resume", "run", "--epochs", "2"],
    ):
        done = call(first, *command)
        assert done.returncode == 0, (command, done.stderr)
    assert load_checkpoint(first / "run" / "checkpoint.pt").step == 6
    assert pq.read_table(first / "made.parquet").num_rows == 20


@pytest.mark.parametrize("protocol", ["knn", "linear-cached"])
def test_a_result_of_version_1_is_shown_and_not_measured_again(used: Path, protocol: str):
    (file,) = (used / "run" / "results").glob(f"{protocol}-*.json")
    before = file.read_bytes()  # a result of today holds more than this one
    done = call(used, "eval", "run", "--protocol", protocol)
    assert done.returncode == 0, done.stderr
    accuracy = max(json.loads(before)["accuracy"]["trained"].values())
    assert f"{accuracy:.2f}%" in done.stdout
    assert file.read_bytes() == before


def test_the_gallery_and_embeddings_of_version_1_are_read(used: Path):
    done = call(used, "report", "run", "-o", "page.html")
    assert done.returncode == 0, done.stderr
    page = (used / "page.html").read_text(encoding="utf-8")
    assert page.count("data:image/") > 0  # only the gallery has pictures of the images
    (used / "run" / "gallery.npz").unlink()
    assert call(used, "report", "run", "-o", "without.html").returncode == 0
    assert "data:image/" not in (used / "without.html").read_text(encoding="utf-8")
    done = call(used, "curate", "run", "run/embeddings.parquet", "--keep", "3")
    assert done.returncode == 0, done.stderr
    assert len((used / "curated.txt").read_text().splitlines()) == 3


def test_embeddings_that_version_0_1_made_still_belong_to_their_run(first: Path):
    digest = "37d34275e68c03b077080fb4721ad9ae"  # what 0.1.0 writes into an embeddings file of this run
    assert load_trained(first / "run", "cpu").digest == digest


def test_a_packed_store_of_version_1_is_read(first: Path):
    assert json.loads((first / "store" / "meta.json").read_text())["format"] == 1

    def nothing() -> Iterator[EncodedImage]:
        raise AssertionError("the images were read again")

    listing = Listing(name="photos", key="x", splits={"train": EncodedSplit(13, True, nothing)})
    found = cache.load(first / "store", listing)
    assert found is not None
    dataset, bad_files = found
    assert bad_files == 1
    assert dataset.train.images.pixels.shape == (12, 16, 16, 3)
    assert dataset.train.names is not None
    assert dataset.train.names[0] == "a/0.png"
    assert dataset.class_names == ("a", "b")
    assert "1 of 13 files" in dataset.notes[0]
    with np.load(first / "data.npz") as arrays:
        np.testing.assert_array_equal(dataset.train.images.pixels[0], arrays["x_train"][0])


@pytest.mark.parametrize("found", [0, 2, "one", None])
def test_a_run_of_another_format_is_refused_with_the_remedy_by_every_command(first: Path, found: object):
    file = first / "run" / "environment.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": found}))
    for command in (
        ["eval", "run"],
        ["embed", "run", "data.npz"],
        ["report", "run"],
        ["export", "run", "--to", "safetensors"],
        ["pretrain", "--resume", "run"],
    ):
        done = call(first, *command)
        assert_refused(done, [f"format {found!r}", f"reads format {RUN_FORMAT}", "use the version that wrote it"])


def test_a_run_without_environment_json_is_of_version_1(first: Path):
    (first / "run" / "environment.json").unlink()
    RunDirectory.open(first / "run").check_format()


@pytest.mark.parametrize("found", [0, 2])
def test_a_checkpoint_of_another_format_is_refused_with_the_remedy(run: Path, tmp_path: Path, found: int):
    copy = copy_run(run, tmp_path / "run")
    state = torch.load(copy / "checkpoint.pt", weights_only=True)
    assert state["format"] == 1
    (copy / "checkpoint.pt").unlink()
    torch.save({**state, "format": found}, copy / "checkpoint.pt")
    done = call(tmp_path, "pretrain", "--resume", "run")
    assert_refused(done, [f"format {found}, not {RUN_FORMAT}", "resume with the version of carl that wrote it"])


def test_a_packed_store_of_another_format_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "photos").mkdir()
    for number in range(3):
        (tmp_path / "photos" / f"{number}.png").write_bytes(encoded())
    first = open_dataset(tmp_path / "photos")
    (entry,) = (tmp_path / "cache" / "packed").iterdir()
    meta = json.loads((entry / "meta.json").read_text())
    for found in (0, 2):
        (entry / "meta.json").write_text(json.dumps({**meta, "format": found}))
        assert open_dataset(tmp_path / "photos").fingerprint == first.fingerprint
        assert json.loads((entry / "meta.json").read_text()) == meta


def test_embeddings_of_another_format_are_refused_with_the_remedy(run: Path, tmp_path: Path, small_data: Path):
    done = call(tmp_path, "embed", run, small_data, "-o", "a.parquet")
    assert done.returncode == 0, done.stderr
    table = pq.read_table(tmp_path / "a.parquet")
    about = json.loads(table.schema.metadata[b"carl"])
    assert about["version"] == 1
    changed = {b"carl": json.dumps({**about, "version": 2}).encode()}
    pq.write_table(table.replace_schema_metadata(changed), tmp_path / "a.parquet")
    done = call(tmp_path, "curate", run, "a.parquet", "--keep", "3")
    assert_refused(done, ["a.parquet has format 2", "carl embed"])
