"""Views cut from photos of varied size, decoded when they are needed."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from carl.config import parse_assignments
from carl.data import open_dataset, photo_images
from carl.data.batches.build import make_views
from carl.data.batches.photos import PhotoBatches
from carl.data.photo_images import PhotoImages
from carl.errors import UserError
from carl.views.recipes import pipeline
from carl.views.views import Views


@pytest.fixture
def folder(tmp_path):
    """Two smooth photos, one of them turned by its EXIF data, one that is no JPEG, and one damaged file."""
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


def opened(folder: Path) -> PhotoImages:
    found = open_dataset(folder, image_size=32).train.photos
    assert found is not None
    return found


def save_noise(path: Path, height: int, width: int, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    small = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).save(path)


# crops


def test_photos_are_in_the_order_of_the_packed_images_and_have_upright_sizes(folder):
    dataset = open_dataset(folder, image_size=32)
    assert dataset.train.images.pixels.shape == (3, 32, 32, 3)
    assert dataset.train.photos.names == dataset.train.names == ("a.jpg", "b.jpg", "c.png")
    assert dataset.train.photos.sizes.tolist() == [[480, 640], [640, 480], [300, 301]]
    assert opened(folder).sizes.tolist() == dataset.train.photos.sizes.tolist()


@pytest.mark.parametrize("box", [(0, 0, 480, 480), (100, 200, 77, 93), (3.5, 10.25, 40.5, 60), (400, 560, 80, 80)])
def test_a_crop_equals_pillows_of_the_whole_upright_image(folder, box):
    images = opened(folder)
    top, left, height, width = box
    for index, turn in ((0, None), (1, Image.Transpose.ROTATE_270), (2, None)):
        if (np.array([top + height, left + width]) > images.sizes[index]).any():
            continue
        with Image.open(folder / images.names[index]) as image:
            full = image.convert("RGB") if turn is None else image.convert("RGB").transpose(turn)
        expected = full.resize((32, 32), Image.Resampling.BILINEAR, (left, top, left + width, top + height))
        ((found,),) = images.crop(np.array([index]), np.array([[box]]), [32])
        assert np.abs(found.astype(int) - np.asarray(expected)).max() <= 3  # reduced decoding, at a smooth image


def test_views_of_an_image_come_in_order_and_each_at_its_own_side(folder):
    images = opened(folder)
    boxes = np.array([[(0, 0, 100, 100), (100, 100, 200, 150)], [(0, 0, 300, 300), (5, 5, 20, 20)]], float)
    found = images.crop(np.array([2, 0]), boxes, [16, 8])
    assert [crop.shape for crop in found] == [(2, 16, 16, 3), (2, 8, 8, 3)]
    assert all(crop.dtype == np.uint8 for crop in found)
    for row, index in enumerate((2, 0)):
        for view, side in enumerate((16, 8)):
            ((alone,),) = images.crop(np.array([index]), boxes[row : row + 1, view : view + 1], [side])
            assert np.abs(found[view][row].astype(int) - alone).max() <= 3


@pytest.mark.parametrize(("side", "reduction"), [(480, 8), (130, 4), (60, 1)])
def test_large_crops_are_decoded_at_reduced_resolution_and_small_ones_in_full(tmp_path, side, reduction):
    noise = np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)  # looks different at each resolution
    (tmp_path / "photos").mkdir()
    Image.fromarray(noise).save(tmp_path / "photos" / "a.jpg", quality=95)
    ((found,),) = opened(tmp_path / "photos").crop(np.array([0]), np.array([[(0, 0, side, side)]], float), [32])
    with Image.open(tmp_path / "photos" / "a.jpg") as image:
        image.draft(None, (640 // reduction, 480 // reduction))
        corner = (0, 0, side / reduction, side / reduction)
        expected = image.resize((32, 32), Image.Resampling.BILINEAR, corner)
    np.testing.assert_array_equal(found, np.asarray(expected))


def test_a_photo_that_vanished_is_an_error_that_names_it(folder):
    images = opened(folder)
    (folder / "a.jpg").unlink()
    with pytest.raises(UserError, match=r"a\.jpg could be decoded when it was packed but not now"):
        images.crop(np.array([2, 0, 1]), np.full((3, 1, 4), 50.0), [8])


def test_boxes_of_a_wrong_shape_are_an_error(folder):
    with pytest.raises(ValueError, match="boxes of shape"):
        opened(folder).crop(np.array([0]), np.zeros((1, 4)), [8])


# what views are cut from


def test_views_are_cut_from_photos_of_twice_their_side_and_from_packed_images_otherwise(tmp_path):
    for index, (height, width) in enumerate([(200, 300), (210, 205), (199, 400)]):
        save_noise(tmp_path / f"{index}.jpg", height, width)
    assert open_dataset(tmp_path, image_size=100).views_from == "photos"
    assert open_dataset(tmp_path, image_size=101).views_from == "packed"
    assert open_dataset(tmp_path).views_from == "photos"  # views of 96 px


def test_the_note_on_photos_has_an_option_that_works_as_it_is_written(tmp_path):
    for index in range(3):
        save_noise(tmp_path / f"{index}.jpg", 200, 300)
    (said,) = re.findall(r"--set (\S+) is faster", open_dataset(tmp_path).notes[-1])
    data = parse_assignments([said])["data"]
    assert open_dataset(tmp_path, **data).views_from == "packed"


def test_images_that_are_packed_as_they_are_lose_nothing_and_stay_packed(tmp_path):
    for index in range(3):
        save_noise(tmp_path / f"{index}.png", 200, 200)
    assert open_dataset(tmp_path, image_size=32).views_from == "packed"
    assert open_dataset(tmp_path, image_size=32, views_from="photos").views_from == "photos"


def test_either_can_be_forced(folder):
    packed = open_dataset(folder, image_size=32, views_from="packed")
    assert packed.views_from == "packed"
    assert packed.notes == open_dataset(folder, image_size=32).notes[:-1]
    assert open_dataset(folder, image_size=256).views_from == "packed"
    assert open_dataset(folder, image_size=256, views_from="photos").views_from == "photos"


def test_only_folders_of_image_files_can_be_forced(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((1, 4, 4, 3), np.uint8))
    stream = io.BytesIO()
    Image.new("RGB", (400, 400)).save(stream, "PNG")
    pq.write_table(pa.table({"image": [{"bytes": stream.getvalue(), "path": "1.png"}]}), tmp_path / "x.parquet")
    for name in ("x.npy", "x.parquet"):
        assert open_dataset(tmp_path / name, image_size=32).views_from == "packed"
        with pytest.raises(UserError, match=r"data\.views_from='photos' needs a folder"):
            open_dataset(tmp_path / name, image_size=32, views_from="photos")


def test_only_what_is_trained_on_has_photos_and_parts_of_it_keep_theirs(tmp_path):
    for index in range(4):
        save_noise(tmp_path / ("test" if index == 3 else "train") / f"{index}.jpg", 300 + index, 400)
    dataset = open_dataset(tmp_path, image_size=32)
    assert dataset.test.photos is None
    assert dataset.train.subset(np.array([2, 0])).photos.names == ("2.jpg", "0.jpg")
    assert dataset.train.subset(np.array([2, 0])).photos.sizes[:, 0].tolist() == [302, 300]
    assert dataset.train.head(2).photos.names == ("0.jpg", "1.jpg")


# views and batches


@pytest.fixture
def varied(tmp_path) -> Path:
    for index in range(24):
        save_noise(tmp_path / "varied" / f"{index:02}.jpg", 150 + 7 * index, 300 - 5 * index, seed=index)
    return tmp_path / "varied"


def stream(folder: Path, rank: int = 0, ranks: int = 1, first_step: int = 0) -> list[tuple[torch.Tensor, ...]]:
    """The batches of an epoch: indices and views of each."""
    dataset = open_dataset(folder, image_size=32)
    views = Views(pipeline("swav_multicrop", 32), dataset.statistics.mean, dataset.statistics.std, seed=5)
    batches = PhotoBatches(dataset.train, views, 8, seed=1, device=torch.device("cpu"), rank=rank, ranks=ranks)
    assert dataset.views_from == "photos"
    return [(batch.indices, *batch.views) for batch in batches.epoch(3, first_step)]


def test_views_of_photos_are_those_of_the_whole_images_up_to_the_8_bits_of_a_crop(tmp_path):
    for index in range(24):
        save_noise(tmp_path / f"{index:02}.png", 150 + 7 * index, 300 - 5 * index, seed=index)
    dataset = open_dataset(tmp_path, image_size=32)
    views = Views(pipeline("simclr", 32), (0.0,) * 3, (1.0,) * 3, seed=5)
    found = make_views(dataset.train, views, np.arange(24), 0, torch.device("cpu"))
    for row, name in enumerate(dataset.train.names):
        with Image.open(tmp_path / name) as image:
            whole = torch.from_numpy(np.array(image))[None]
        for view, other in zip(found, views(whole, torch.tensor([row]), 0), strict=True):
            assert view[row].shape == (3, 32, 32)
            assert (view[row] - other[0]).abs().mean() < 1 / 255


def test_resumed_epochs_go_on_with_the_same_bits(varied):
    whole, rest = stream(varied), stream(varied, first_step=1)
    assert len(whole) == 3
    assert all(
        torch.equal(a, b) for one, other in zip(whole[1:], rest, strict=True) for a, b in zip(one, other, strict=True)
    )


def test_views_do_not_depend_on_the_number_of_workers(varied, monkeypatch):
    before = stream(varied)
    with ThreadPoolExecutor(7) as pool:
        monkeypatch.setattr(photo_images, "pool", lambda: pool)
        after = stream(varied)
    assert all(
        torch.equal(a, b) for one, other in zip(before, after, strict=True) for a, b in zip(one, other, strict=True)
    )


def test_two_processes_have_together_the_views_of_one(varied):
    whole = stream(varied)
    halves = [stream(varied, rank, 2) for rank in range(2)]
    for step, (indices, *views) in enumerate(whole):
        for rank, half in enumerate(halves):
            assert torch.equal(indices[rank::2], half[step][0])
            for view, part in zip(views, half[step][1:], strict=True):
                torch.testing.assert_close(view[rank::2], part, atol=1e-5, rtol=0)


def test_a_spawned_process_makes_the_same_views(varied):
    code = (
        "import sys, torch, pathlib; from tests.data.test_photos import stream; "
        "print(sum(float(t.double().sum()) for step in stream(pathlib.Path(sys.argv[1])) for t in step))"
    )
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", code, varied], cwd=root, env=os.environ, capture_output=True, text=True, check=True
    )
    here = sum(float(tensor.double().sum()) for step in stream(varied) for tensor in step)
    assert float(ended.stdout) == pytest.approx(here, rel=1e-6)


def test_an_epoch_that_is_left_early_leaves_no_work_behind(varied, monkeypatch):
    dataset = open_dataset(varied, image_size=32)
    views = Views(pipeline("simclr", 32), dataset.statistics.mean, dataset.statistics.std, seed=5)
    given: list[Future[None]] = []

    class Remembering(ThreadPoolExecutor):
        def submit(self, *work, **options):
            given.append(super().submit(*work, **options))
            return given[-1]

    with Remembering(2) as pool:
        monkeypatch.setattr(photo_images, "pool", lambda: pool)
        epoch = PhotoBatches(dataset.train, views, 4, seed=1, device=torch.device("cpu")).epoch(0)
        next(epoch)
        epoch.close()
        assert given
        assert all(work.done() for work in given)


def test_an_error_in_a_reader_ends_the_epoch(varied):
    dataset = open_dataset(varied, image_size=32)
    (varied / "11.jpg").unlink()
    views = Views(pipeline("simclr", 32), dataset.statistics.mean, dataset.statistics.std, seed=5)
    with pytest.raises(UserError, match=r"11\.jpg"):
        list(PhotoBatches(dataset.train, views, 4, seed=1, device=torch.device("cpu")).epoch(0))


# whole runs


def test_a_run_on_photos_trains_probes_draws_its_gallery_and_resumes_without_decoding_again(
    tmp_path, carl, monkeypatch
):
    for index in range(40):
        part = f"{'test' if index % 5 == 4 else 'train'}/{'ab'[index % 2]}"
        save_noise(tmp_path / "album" / part / f"{index:02}.jpg", 150 + 3 * index, 260 - index, seed=index)
    small = ["--backbone", "test_resnet", "--batch-size", "8", "--prototypes", "10", "--set", "probe.images=16"]
    ended = carl("pretrain", tmp_path / "album", *small, "--epochs", "1", "--out", "run")
    assert ended.returncode == 0, ended.stderr
    assert "training cuts its views from the files" in ended.stdout
    with np.load(tmp_path / "run" / "gallery.npz", allow_pickle=False) as gallery:
        assert gallery["views"].std() > 10
        assert len(gallery["thumbnails"]) == 32
    monkeypatch.setattr("carl.data.decoding.parallel.decode", lambda content, shape: pytest.fail("decoded again"))
    ended = carl("pretrain", "--resume", "run", "--epochs", "2")
    assert ended.returncode == 0, ended.stderr
    ended = carl("eval", "run")
    assert ended.returncode == 0, ended.stderr
