"""Which sub-folders are taken for classes, and which images `data.limit` takes."""

from __future__ import annotations

import numpy as np
import pytest

from carl.config import BEFORE, DataConfig
from carl.data.configured import balanced_rows, load_data
from carl.data.dataset import UNLABELLED, PackedImages, Split
from carl.data.labels import named_like_numbers
from carl.data.open import open_dataset
from carl.errors import UserError


@pytest.mark.parametrize(
    "names",
    [
        ["2023-05", "2023-06"],
        ["2023", "2024"],
        ["001", "002", "003"],
        ["IMG_001", "IMG_002"],
        ["100CANON", "101CANON"],
        ["2023-05-01 10.22", "2023_05_02"],
        ["May 2023", "2023 June"],
        ["batch 1", "batch-2"],
        ["20230501", "holiday", "20230601"],
    ],
)
def test_dates_numbers_and_what_cameras_write_are_not_classes(names: list[str]):
    assert named_like_numbers(names)


@pytest.mark.parametrize(
    "names",
    [
        ["cat", "dog"],
        ["n01440764", "n01443537"],  # ImageNet's
        ["737-200", "A300B4", "Boeing 747", "DC-10"],  # aircraft
        ["class 1", "class 2"],
        ["may", "june"],  # people
        ["001.Black_footed_Albatross", "002.Laysan_Albatross"],
        ["猫", "犬"],
    ],
)
def test_names_with_a_word_in_them_are_classes(names: list[str]):
    assert not named_like_numbers(names)


def images_in(save_image, root, folders):
    for folder in folders:
        for place in range(2):
            save_image(root / folder / f"{place}.png")


def test_sub_folders_that_are_taken_for_classes_are_named_and_can_be_turned_off(tmp_path, save_image):
    images_in(save_image, tmp_path, ["ant", "bee", "cow", "dog"])
    dataset = open_dataset(tmp_path)
    assert dataset.class_names == ("ant", "bee", "cow", "dog")
    note = "4 sub-folders are taken for classes: ant, bee, cow, ...; --labels none turns this off"
    assert note in dataset.notes
    plain = open_dataset(tmp_path, labels="none")
    assert plain.class_names == ()
    assert not plain.train.labelled
    assert not any("classes" in note for note in plain.notes)
    assert plain.fingerprint == dataset.fingerprint  # so that a run may be resumed either way
    with pytest.raises(UserError, match="labels='off' is unknown; use one of: auto, folders, none"):
        open_dataset(tmp_path, labels="off")


def test_sub_folders_named_like_dates_are_not_classes_unless_they_are_asked_for(tmp_path, save_image):
    images_in(save_image, tmp_path, ["2023-05", "2023-06"])
    dataset = open_dataset(tmp_path)
    assert dataset.class_names == ()
    assert not dataset.train.labelled
    assert any(
        "2 sub-folders are named like dates or numbers (2023-05, 2023-06)" in note and "--labels folders" in note
        for note in dataset.notes
    )
    assert open_dataset(tmp_path, labels="folders").class_names == ("2023-05", "2023-06")


def test_names_reach_the_note_as_plain_text(tmp_path, save_image):
    images_in(save_image, tmp_path, ["a\x1b[31m", "b"])
    (note,) = [note for note in open_dataset(tmp_path).notes if "taken for classes" in note]
    assert "\x1b" not in note


def split_of(labels: list[int] | None, count: int = 0) -> Split:
    count = count if labels is None else len(labels)
    pixels = np.arange(count, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 3), np.uint8)
    return Split(PackedImages(pixels), None if labels is None else np.array(labels))


def test_a_limit_takes_as_many_of_each_class_as_it_can_and_smaller_limits_are_part_of_it():
    labels = [0] * 50 + [1] * 5 + [2] * 50
    split = split_of(labels)
    for count in (1, 3, 10, 15, 60):
        rows = balanced_rows(split, count)
        assert len(set(rows)) == count
        assert (np.diff(rows) > 0).all()
        taken = np.bincount(split.labels[rows], minlength=3)
        assert taken[1] == min(5, taken[1])
        assert abs(int(taken[0]) - int(taken[2])) <= 1
        assert taken[1] >= min(5, count // 3)
        assert set(rows) <= set(balanced_rows(split, count + 7))
        np.testing.assert_array_equal(rows, balanced_rows(split, count))
    assert set(balanced_rows(split, 3)) != {0, 50, 55}  # at random, not the first of each


@pytest.mark.parametrize("labels", [None, [0, UNLABELLED] * 20])
def test_without_a_label_on_every_image_chance_alone_decides(labels):
    split = split_of(labels, 40)
    rows = balanced_rows(split, 10)
    assert len(set(rows)) == 10
    assert list(rows) != list(range(10))


def test_a_configuration_says_how_it_limits_and_older_ones_took_the_first(tmp_path):
    images = np.arange(40, dtype=np.uint8)[:, None, None, None] * np.ones((1, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "x.npz", images=images, labels=np.repeat(np.arange(4), 10))

    def taken(**values):
        return load_data(DataConfig(source=str(tmp_path / "x.npz"), limit=8, **values)).train

    assert np.bincount(taken().labels).tolist() == [2, 2, 2, 2]
    assert taken(limit_by="first").images.pixels[:, 0, 0, 0].tolist() == list(range(8))
    assert BEFORE["data"]["limit_by"] == "first"
