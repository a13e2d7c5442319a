"""Crops from photos of varied size, decoded when they are needed."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from carl.data.photos import PhotoImages, open_photos
from carl.errors import UserError


@pytest.fixture
def folder(tmp_path):
    """Two smooth photos, one of them turned by its EXIF data, and one damaged file."""
    ramp = np.linspace(0, 255, 640)
    wide = np.stack([np.tile(ramp, (480, 1)), np.tile(ramp[:480, None], (1, 640)), np.full((480, 640), 80)], 2)
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "photos").mkdir()
    Image.fromarray(wide.astype(np.uint8)).save(tmp_path / "photos" / "a.jpg", quality=95)
    Image.fromarray(wide.astype(np.uint8)).save(tmp_path / "photos" / "b.jpg", quality=95, exif=exif)
    Image.fromarray(wide.astype(np.uint8)[:300, :301]).save(tmp_path / "photos" / "c.png")
    (tmp_path / "photos" / "bad.jpg").write_bytes(b"")
    return tmp_path / "photos"


def test_photos_are_in_the_order_of_the_packed_images_and_have_upright_sizes(folder):
    dataset, photos = open_photos(folder, image_size=32)
    assert dataset.train.images.pixels.shape == (3, 32, 32, 3)
    assert [path.name for path in photos.paths] == list(dataset.train.names) == ["a.jpg", "b.jpg", "c.png"]
    assert photos.sizes.tolist() == [[480, 640], [640, 480], [300, 301]]
    assert open_photos(folder, image_size=32)[1].sizes.tolist() == photos.sizes.tolist()


@pytest.mark.parametrize("box", [(0, 0, 480, 480), (100, 200, 77, 93), (3.5, 10.25, 40.5, 60), (400, 560, 80, 80)])
def test_a_crop_equals_pillows_of_the_whole_upright_image(folder, box):
    photos = open_photos(folder, image_size=32)[1]
    top, left, height, width = box
    for index, turn in ((0, None), (1, Image.Transpose.ROTATE_270), (2, None)):
        if (np.array([top + height, left + width]) > photos.sizes[index]).any():
            continue
        with Image.open(photos.paths[index]) as image:
            full = image.convert("RGB") if turn is None else image.convert("RGB").transpose(turn)
        expected = full.resize((32, 32), Image.Resampling.BILINEAR, (left, top, left + width, top + height))
        (((found,),)) = photos.crop(np.array([index]), np.array([[box]]), 32)
        assert np.abs(found.astype(int) - np.asarray(expected)).max() <= 3  # reduced decoding, at a smooth image


def test_views_of_an_image_come_together_and_in_order(folder):
    photos = open_photos(folder, image_size=32)[1]
    boxes = np.array([[(0, 0, 100, 100), (100, 100, 200, 150)], [(0, 0, 300, 300), (5, 5, 20, 20)]], float)
    found = photos.crop(np.array([2, 0]), boxes, 16)
    assert found.shape == (2, 2, 16, 16, 3)
    assert found.dtype == np.uint8
    for row, index in enumerate((2, 0)):
        for view in range(2):
            alone = photos.crop(np.array([index]), boxes[row : row + 1, view : view + 1], 16)[0, 0]
            assert np.abs(found[row, view].astype(int) - alone).max() <= 3


def test_large_crops_are_decoded_at_reduced_resolution_and_small_ones_in_full(folder, monkeypatch):
    sides = []
    monkeypatch.setattr("carl.data.photos._crop", lambda image, box, size: sides.append(image.size) or np.zeros((1,)))
    photos = PhotoImages((folder / "a.jpg",), np.array([[480, 640]]))
    for side in (480, 130, 60):
        photos.crop(np.array([0]), np.array([[(0, 0, side, side)]], float), 32)
    assert sides == [(80, 60), (160, 120), (640, 480)]


def test_crops_can_be_made_ahead(folder):
    photos = open_photos(folder, image_size=32)[1]
    boxes = np.array([[(0, 0, 50, 50)]], float)
    waits = [photos.start_crop(np.array([index]), boxes, 8) for index in range(3)]
    for index, wait in enumerate(waits):
        np.testing.assert_array_equal(wait(), photos.crop(np.array([index]), boxes, 8))


def test_a_photo_that_vanished_is_an_error_that_names_it(folder):
    photos = open_photos(folder, image_size=32)[1]
    (folder / "a.jpg").unlink()
    with pytest.raises(UserError, match=r"a\.jpg could be decoded when it was packed but not now"):
        photos.crop(np.array([0]), np.array([[(0, 0, 50, 50)]], float), 8)


def test_boxes_of_a_wrong_shape_are_an_error(folder):
    with pytest.raises(ValueError, match=r"\(B, V, 4\)"):
        open_photos(folder, image_size=32)[1].crop(np.array([0]), np.zeros((1, 4)), 8)


def test_only_folders_hold_photos(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((1, 4, 4, 3), np.uint8))
    with pytest.raises(UserError, match="not a folder"):
        open_photos(tmp_path / "x.npy")


def test_a_folder_of_parquet_files_holds_no_photos(tmp_path):
    stream = io.BytesIO()
    Image.new("RGB", (4, 4)).save(stream, "PNG")
    pq.write_table(pa.table({"image": [{"bytes": stream.getvalue(), "path": "1.png"}]}), tmp_path / "x.parquet")
    with pytest.raises(UserError, match="does not hold image files"):
        open_photos(tmp_path)
