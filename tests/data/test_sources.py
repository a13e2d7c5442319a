"""Names, paths and mistakes in them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from carl.data import SOURCES, open_dataset
from carl.data.describe import contact_sheet, describe, list_sources
from carl.errors import UserError


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CARL_CACHE", str(tmp_path_factory.mktemp("shapes")))
        yield open_dataset("shapes")


def test_the_built_in_shapes_need_nothing(shapes):
    assert shapes.train.images.pixels.shape == (10_000, 32, 32, 3)
    assert shapes.test.images.pixels.shape == (2_000, 32, 32, 3)
    assert len(shapes.class_names) == 10
    assert set(np.unique(shapes.train.labels)) == set(range(10))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("cifr10", "did you mean 'cifar10'"),
        ("zzz", "use one of: cifar10, .*shapes"),
        ("photos/none", "photos/none does not exist"),
        ("", "neither"),
    ],
)
def test_an_unknown_source_is_an_error_with_a_suggestion(source, message):
    with pytest.raises(UserError, match=message):
        open_dataset(source)


def test_a_file_of_an_unknown_kind_is_an_error(tmp_path):
    (tmp_path / "x.csv").write_text("1")
    with pytest.raises(UserError, match=r"unknown kind.*\.parquet"):
        open_dataset(tmp_path / "x.csv")


@pytest.mark.parametrize(("option", "value"), [("image_size", 0), ("max_bad", -1)])
def test_impossible_options_are_errors(tmp_path, option, value):
    with pytest.raises(UserError, match=f"{option}={value}"):
        open_dataset(tmp_path, **{option: value})


def test_every_source_says_what_it_is():
    rows = list_sources()
    assert [name for name, _ in rows] == list(SOURCES)
    assert all(len(text) > 20 for _, text in rows)


def test_importing_the_package_does_not_import_torch():
    code = "import sys, carl.data, carl.data.describe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_data_set_is_described_in_rows(shapes):
    rows = dict(describe(shapes))
    assert rows["train"] == "10,000 images, 1,000 per class"
    assert rows["image size"] == "32 x 32 pixels, RGB"
    assert rows["classes"].startswith("10: disc")


def test_a_description_needs_no_labels(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 40, 20, 5), np.uint8))
    dataset = open_dataset(tmp_path / "x.npy")
    rows = dict(describe(dataset))
    assert rows["train"] == "3 images without labels"
    assert rows["classes"] == "none"
    assert "5 channels" in rows["image size"]
    contact_sheet(dataset, tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 3 * 20


def test_a_contact_sheet_shows_a_class_a_row(shapes, tmp_path):
    contact_sheet(shapes, tmp_path / "sheet.png", columns=4)
    with Image.open(tmp_path / "sheet.png") as image:
        sheet = np.asarray(image)
    assert sheet.shape == (10 * 66 + 2, 96 + 4 * 66 + 2, 3)
    first = shapes.train.images.pixels[np.flatnonzero(shapes.train.labels == 0)[0]]
    np.testing.assert_array_equal(sheet[2:66, 98:162], first.repeat(2, axis=0).repeat(2, axis=1))
