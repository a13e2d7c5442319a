"""carl report ENCODER IMAGES: a page about any images, without training and without labels."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from carl.errors import UserError
from carl.quality import Flagged
from carl.records.gallery import check_gallery
from carl.reporting.report import names_images
from carl.terminal import silent
from carl.use import overview as overview_module
from carl.use.embed import embeddings_for
from carl.use.encoder import TrainedModel
from carl.use.overview import listed_rows, overview
from carl.use.quality_flags import flag_arrays
from tests.conftest import Run
from tests.reliability.conftest import assert_refused, listed


def page_data(page: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page.read_text(encoding="utf-8"), re.S)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


@pytest.fixture
def photos(folder: Path, tmp_path: Path) -> Path:
    """The 96 images with a black one, an exact copy, a copy saved as JPEG, and files that are no images."""
    copied = shutil.copytree(folder, tmp_path / "photos")
    Image.new("RGB", (20, 20)).save(copied / "part 0" / "black.png")
    first = copied / "part 0" / "000.png"
    shutil.copy(first, copied / "part 1" / "zz-copy.png")
    (copied / "part 1" / "damaged.jpg").write_bytes(b"\xff\xd8\xff junk")
    (copied / "part 1" / "empty.png").write_bytes(b"")
    return copied


def test_a_page_shows_images_groups_flags_and_labels_and_lists_bad_files(carl: Run, run: Path, photos: Path):
    before = listed(photos)
    done = carl("report", run, photos, "-o", "page.html")
    assert done.returncode == 0, done.stderr
    assert "damaged.jpg" in done.stdout
    assert "empty.png: the file is empty" in done.stdout
    assert "1 exact copies" in done.stdout
    data = page_data(Path("page.html"))
    images = data["images"]
    assert images["total"] == images["count"] == 98
    assert images["classes"] == ["part 0", "part 1"]
    assert data["galleries"][0]["groups"]["count"] == 2
    flags = {flag["name"]: flag["count"] for flag in images["flag_list"]}
    assert flags["Too dark"] == flags["Exact copies"] == 1
    assert len(images["duplicate_of"]) == 1
    assert listed(photos) == before
    assert [path.name for path in Path().iterdir() if path.suffix == ".html"] == ["page.html"]


def test_a_file_of_embeddings_gives_the_same_page_and_an_older_one_a_page_without_flags(
    carl: Run, run: Path, photos: Path
):
    assert carl("embed", run, photos, "-o", "e.parquet").returncode == 0
    assert carl("report", run, "e.parquet", "-o", "a.html").returncode == 0
    assert carl("report", run, photos, "-o", "b.html").returncode == 0
    one, other = page_data(Path("a.html")), page_data(Path("b.html"))
    assert one["images"]["names"] == other["images"]["names"]
    assert one["images"]["flags"] == other["images"]["flags"]
    table = pq.read_table("e.parquet")
    pq.write_table(table.drop_columns(["sharpest", "looks"]), "old.parquet")
    done = carl("report", run, "old.parquet", "-o", "c.html")
    assert "made before quality was measured" in done.stdout
    assert "flags" not in page_data(Path("c.html"))["images"]


def test_images_in_an_array_have_a_page_with_their_labels(carl: Run, run: Path, small_data: Path):
    done = carl("report", run, small_data, "--split", "train", "-o", "page.html")
    assert done.returncode == 0, done.stderr
    images = page_data(Path("page.html"))["images"]
    assert images["total"] == 96
    assert images["base"] is None
    assert len(images["labels"]) == 96


def test_another_file_is_not_replaced_and_nothing_is_written(carl: Run, run: Path, photos: Path, tmp_path: Path):
    (tmp_path / "notes.html").write_text("mine")
    before = listed(tmp_path)
    assert_refused(carl("report", run, photos, "-o", "notes.html"), ["notes.html exists", "--force"])
    assert listed(tmp_path) == before
    assert carl("report", run, photos, "-o", "notes.html", "--force").returncode == 0
    assert carl("report", run, photos, "-o", "notes.html").returncode == 0  # now it is a report


def test_images_none_of_which_can_be_decoded_are_refused(carl: Run, run: Path, tmp_path: Path):
    (tmp_path / "bad").mkdir()
    for number in range(3):
        (tmp_path / "bad" / f"{number}.png").write_bytes(b"nothing")
    done = carl("report", run, "bad", "-o", "page.html")
    assert_refused(done, ["none of the 3 images can be used"])
    assert not (tmp_path / "page.html").exists()


def test_one_image_is_refused(carl: Run, run: Path, folder: Path):
    done = carl("report", run, folder / "part 0" / "000.png", "-o", "page.html")
    assert_refused(done, ["one image", "give more"])


def test_arguments_are_runs_or_an_encoder_and_images(run: Path, simclr_run: Path, folder: Path):
    assert names_images((str(run), str(folder)))
    assert names_images(("timm:resnet18", "missing"))
    assert not names_images((str(run),))
    assert not names_images((str(run), str(simclr_run)))
    with pytest.raises(UserError, match=r"is a run directory and timm:x is not"):
        names_images(("timm:x", str(run)))
    with pytest.raises(UserError, match="is not a run directory; give runs to compare, or one encoder"):
        names_images((str(run), str(simclr_run), str(folder)))
    for encoder in ("timm:resnet18", str(run / "encoder.safetensors")):
        with pytest.raises(UserError, match=f"{encoder} is not a run directory; name its images too: carl report"):
            names_images((encoder,))


def test_options_of_images_are_refused_for_runs(carl: Run, run: Path):
    assert_refused(carl("report", run, "--split", "train"), ["--split"])
    assert_refused(carl("report", run, "missing-folder"), ["missing-folder"])


def test_many_images_are_listed_with_their_groups_beyond_the_sample(
    trained: TrainedModel, photos: Path, monkeypatch: pytest.MonkeyPatch
):
    index = embeddings_for(trained, str(photos), None, silent)
    whole = overview(index, trained.shape)
    monkeypatch.setattr(overview_module, "SAMPLE", 30)
    part = overview(index, trained.shape)
    check_gallery(part)
    assert part["rows"].shape == (30,)
    assert part["listed_rows"].tolist() == list(range(98))
    assert part["listed_names"].tolist() == whole["names"].tolist()
    np.testing.assert_array_equal(part["listed_group"][part["rows"]], part["group"])
    for name in ("flags", "flag_counts", "duplicate_of"):
        np.testing.assert_array_equal(part[name], whole[name])
    with Image.open(photos / str(part["names"][0])) as image:
        side = part["thumbnails"].shape[1]
        expected = np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC), int)
    assert np.abs(part["thumbnails"][0] - expected).mean() < 12


def test_of_very_many_images_those_with_flags_are_listed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(overview_module, "LISTED", 50)
    sample = np.arange(0, 1000, 50)
    flag = Flagged(np.array([3, 777, 999]), np.ones(3))
    rows = listed_rows(1000, sample, {"dark": flag})
    assert len(rows) == 50
    assert (np.diff(rows) > 0).all()
    assert {*sample.tolist(), 3, 777, 999} <= set(rows.tolist())


def test_flags_of_copies_are_set_for_the_repetitions_and_point_to_what_stays():
    sets = (np.array([2, 5, 9]), np.array([4, 7]))
    found = {
        "exact-copies": Flagged(np.concatenate(sets), np.ones(5), sets),
        "dark": Flagged(np.array([4]), np.ones(1)),
    }
    arrays = flag_arrays(found, np.array([0, 2, 4, 5, 7]))  # 9 is not listed
    assert arrays["flags"].tolist() == [0, 0, 2, 1, 1]
    assert arrays["duplicate_of"].tolist() == [-1, -1, -1, 1, 2]
    assert arrays["flag_counts"].tolist() == [3, 1]
