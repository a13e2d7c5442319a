"""The cache of packed images: instant, atomic, and aware of changes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from carl.data import open_dataset
from carl.data.decoding import decode, parallel
from carl.data.decoding.file_arrays import FileArray
from carl.data.open import list_source
from carl.data.packing import pack
from carl.errors import UserError
from carl.terminal import silent
from carl.user_paths import cache_folder


@pytest.fixture
def folder(tmp_path, save_image) -> Path:
    for i in range(6):
        save_image(tmp_path / "photos" / "ab"[i % 2] / f"{i}.png", seed=i)
    return tmp_path / "photos"


@pytest.fixture
def decoded(monkeypatch) -> list[object]:
    """Grows by one with every image that is decoded."""
    calls: list[object] = []

    def counting(content, shape):
        calls.append(content)
        return decode.decode(content, shape)

    monkeypatch.setattr(parallel, "decode", counting)
    return calls


def entries(cache: Path) -> list[Path]:
    return sorted((cache / "packed").iterdir())


def test_a_second_start_decodes_nothing_and_gives_the_same(folder, decoded):
    first = open_dataset(folder)
    assert len(decoded) == 6
    second = open_dataset(folder)
    assert len(decoded) == 6
    assert isinstance(second.train.images.pixels, FileArray)
    np.testing.assert_array_equal(first.train.images.pixels, second.train.images.pixels)
    assert second.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    for attribute in ("fingerprint", "statistics", "class_names", "notes", "name", "opened"):
        assert getattr(first, attribute) == getattr(second, attribute)


def test_a_changed_source_is_noticed(folder, save_image, cache):
    first = open_dataset(folder)
    save_image(folder / "a" / "0.png", seed=99)
    os.utime(folder / "a" / "0.png", ns=(1, 1))
    changed = open_dataset(folder)
    save_image(folder / "b" / "new.png", seed=7)
    grown = open_dataset(folder)
    assert len({first.fingerprint, changed.fingerprint, grown.fingerprint}) == 3
    assert (len(changed.train), len(grown.train)) == (6, 7)


def test_the_fingerprint_is_of_the_content_and_not_of_the_place(folder, tmp_path):
    before = open_dataset(folder).fingerprint
    folder.rename(tmp_path / "elsewhere")
    assert open_dataset(tmp_path / "elsewhere").fingerprint == before


def test_the_fingerprint_knows_labels_and_order(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (4, 5, 5, 3), np.uint8)
    variants = [(images, [0, 1, 1, 0]), (images, [1, 1, 1, 0]), (images[::-1], [0, 1, 1, 0])]
    prints = set()
    for i, (pixels, labels) in enumerate(variants):
        np.savez(tmp_path / f"{i}.npz", images=pixels, labels=labels)
        prints.add(open_dataset(tmp_path / f"{i}.npz").fingerprint)
    assert len(prints) == 3


def test_an_entry_of_another_format_is_made_anew(folder, cache, decoded):
    open_dataset(folder)
    (entry,) = entries(cache)
    meta = json.loads((entry / "meta.json").read_text())
    (entry / "meta.json").write_text(json.dumps(meta | {"format": 0}))
    open_dataset(folder)
    assert len(decoded) == 12
    assert json.loads((entry / "meta.json").read_text()) == meta


@pytest.mark.parametrize("damage", ["meta.json", "train/pixels.npy", "train/labels.npy"])
def test_a_damaged_entry_is_made_anew(folder, cache, damage):
    before = np.array(open_dataset(folder).train.images.pixels)
    (entry,) = entries(cache)
    (entry / damage).write_bytes((entry / damage).read_bytes()[:-20])
    again = open_dataset(folder)
    np.testing.assert_array_equal(again.train.images.pixels, before)
    assert again.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert entries(cache) == [entry]


def test_writers_at_the_same_time_end_with_one_whole_entry(folder, cache):
    with ThreadPoolExecutor(4) as pool:
        datasets = list(pool.map(open_dataset, [folder] * 8))
    assert len({dataset.fingerprint for dataset in datasets}) == 1
    assert all(len(dataset.train) == 6 for dataset in datasets)
    assert len(entries(cache)) == 1


def test_an_interrupted_packing_leaves_nothing_behind(folder, cache):
    def interrupt(what: str, done: int, total: int) -> None:
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_dataset(folder, progress=interrupt)
    assert entries(cache) == []


def test_folders_left_by_a_killed_process_are_removed_once_they_are_old(folder, cache):
    old, young = cache / "packed" / ".partial-old", cache / "packed" / ".partial-young"
    for left in (old, young):
        left.mkdir(parents=True)
    week_ago = time.time() - 7 * 24 * 3600
    os.utime(old, (week_ago, week_ago))
    open_dataset(folder)
    assert not old.exists()
    assert young.exists()


def refuse_to_lock(file: int, operation: int) -> None:
    """What `flock` does on some network disks."""
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.parametrize("lockable", [True, False])
def test_what_a_killed_process_left_is_removed_when_the_same_is_packed_and_no_one_else_can_be_at_it(
    folder, cache, monkeypatch, lockable
):
    key = list_source(folder, cache, silent).key
    mine, others = (cache / "packed" / f".partial-{name}-x" for name in (key, "0" * 32))
    for left in (mine, others):
        (left / "train").mkdir(parents=True)
    if not lockable:
        monkeypatch.setattr("fcntl.flock", refuse_to_lock)
    open_dataset(folder)
    assert mine.exists() == (not lockable)
    assert others.exists()


def test_a_cache_that_cannot_be_written_means_memory_and_a_note(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "file"))
    dataset = open_dataset(folder)
    assert isinstance(dataset.train.images.pixels, np.ndarray)
    assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert "packed in memory" in dataset.notes[-1]


def test_a_full_disk_means_memory_and_a_note_or_an_error_that_names_the_remedy(folder, cache, monkeypatch):
    append, fingerprint = pack.PixelWriter.append, open_dataset(folder).fingerprint
    shutil.rmtree(cache / "packed")

    def full(writer: pack.PixelWriter, pixels: np.ndarray) -> None:
        if writer.count == 3 and not writer.in_memory:
            raise OSError(28, "No space left on device")
        append(writer, pixels)

    monkeypatch.setattr(pack.PixelWriter, "append", full)
    dataset = open_dataset(folder)
    assert isinstance(dataset.train.images.pixels, np.ndarray)
    assert dataset.fingerprint == fingerprint
    assert "is full" in dataset.notes[-1]
    monkeypatch.setattr(pack, "memory_of_machine", lambda: 1000)
    with pytest.raises(UserError, match=r"1,000 bytes of memory.*is full.*CARL_CACHE"):
        open_dataset(folder)
    assert entries(cache) == []


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    assert cache_folder() == Path(os.environ["CARL_CACHE"])
    monkeypatch.delenv("CARL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "carl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "carl"


def test_progress_starts_ends_and_is_not_called_for_every_image(folder):
    steps: list[tuple[str, int, int]] = []
    open_dataset(folder, progress=lambda *step: steps.append(step))
    assert steps[0] == ("decoding train", 1, 6)
    assert ("decoding train", 6, 6) in steps
    assert ("statistics", 6, 6) in steps
    assert len(steps) < 8


def test_test_images_are_fitted_to_the_shape_of_the_training_images(tmp_path, save_image):
    save_image(tmp_path / "train" / "1.png", 10, 12)
    save_image(tmp_path / "test" / "1.png", 30, 20)
    dataset = open_dataset(tmp_path)
    assert dataset.test.images.pixels.shape == (1, 10, 12, 3)


def test_an_image_with_other_channels_than_the_first_is_left_out(tmp_path, monkeypatch):
    arrays = iter([np.zeros((4, 4, 3), np.uint8), np.zeros((4, 4, 5), np.uint8)])
    monkeypatch.setattr(parallel, "decode", lambda content, shape: next(arrays))
    for name in ("1.png", "2.png"):
        (tmp_path / name).write_bytes(b"x")
    dataset = open_dataset(tmp_path)
    assert len(dataset.train) == 1
    assert "1 of 2 files" in dataset.notes[0]


def test_images_of_varied_size_are_found_again_by_the_side_that_was_chosen_for_them(tmp_path, save_image, decoded):
    for index in range(3):
        save_image(tmp_path / f"{index}.png", height=40 + index, width=50, seed=index)
    first = open_dataset(tmp_path)
    count = len(decoded)
    side = first.train.images.height
    for image_size in (None, side):  # a resumed run asks for the side that is in its configuration
        again = open_dataset(tmp_path, image_size=image_size)
        assert (again.fingerprint, again.notes) == (first.fingerprint, first.notes)
    assert len(decoded) == count
    assert open_dataset(tmp_path, image_size=side - 1).train.images.height == side - 1
    assert open_dataset(tmp_path).train.images.height == side


def test_of_several_processes_one_packs_and_the_others_wait(folder, decoded):
    with ThreadPoolExecutor(4) as pool:  # a lock is held by an open file, so threads stand for processes
        list(pool.map(open_dataset, [folder] * 4))
    assert len(decoded) == 6
