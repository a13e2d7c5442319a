"""Images in .npy and .npz files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from carl.data import open_dataset
from carl.data.decoding.file_arrays import FileArray
from carl.errors import UserError


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def save(path: Path, array: np.ndarray) -> Path:
    np.save(path, array)
    return path


def test_an_npy_file_is_read_where_it_lies(tmp_path):
    array = images(5, 6, 7, 3)
    path = save(tmp_path / "x.npy", array)
    pixels = open_dataset(path).train.images.pixels
    np.testing.assert_array_equal(pixels, array)
    assert isinstance(pixels, FileArray)
    assert pixels.path == path


def test_labels_and_splits_are_found_beside_an_npy_file(tmp_path):
    save(tmp_path / "x-train.npy", images(4, 6, 6, 3))
    save(tmp_path / "x-train-labels.npy", np.array([[0], [1], [1], [0]]))
    save(tmp_path / "x-test.npy", images(2, 6, 6, 3))
    dataset = open_dataset(tmp_path / "x-train.npy")
    assert dataset.train.labels.tolist() == [0, 1, 1, 0]
    assert dataset.class_names == ("0", "1")
    assert len(dataset.splits["test"]) == 2
    assert dataset.splits["test"].labels is None


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5, 6, 7), (5, 6, 7, 1)),
        ((5, 3, 32, 24), (5, 32, 24, 3)),
        ((5, 13, 64, 64), (5, 64, 64, 13)),
        ((5, 8, 8, 6), (5, 8, 8, 6)),
        ((5, 3, 8, 8), (5, 8, 8, 3)),
    ],
)
def test_the_axis_of_channels_is_recognised(tmp_path, shape, expected):
    array = images(*shape)
    dataset = open_dataset(save(tmp_path / "x.npy", array))
    assert dataset.train.images.pixels.shape == expected
    assert len(dataset.statistics.mean) == expected[3]
    if shape[1] == expected[3]:
        array = array.transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(dataset.train.images.pixels, array.reshape(expected))


@pytest.mark.parametrize("save_npz", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("keys", ["{}_{}", "{1}_{0}"])
def test_an_npz_file_may_hold_several_splits(tmp_path, save_npz, keys):
    train, test = images(4, 6, 6, 3), images(2, 6, 6, 3)
    save_npz(
        tmp_path / "x.npz",
        **{
            keys.format("x", "train"): train,
            keys.format("y", "train"): [1, 0, 1, 2],
            keys.format("x", "test"): test,
            keys.format("y", "test"): [0, 0],
            "class_names": ["a", "b", "c"],
        },
    )
    dataset = open_dataset(tmp_path / "x.npz")
    np.testing.assert_array_equal(dataset.train.images.pixels, train)
    np.testing.assert_array_equal(dataset.test.images.pixels, test)
    assert dataset.train.labels.tolist() == [1, 0, 1, 2]
    assert dataset.class_names == ("a", "b", "c")


def test_an_npz_file_in_column_order_and_one_without_names_are_read(tmp_path):
    array = np.asfortranarray(images(4, 6, 6, 3))
    np.savez(tmp_path / "x.npz", array)
    np.testing.assert_array_equal(open_dataset(tmp_path / "x.npz").train.images.pixels, array)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 4, 4, 3), np.float32), r"float32; images are uint8"),
        (np.zeros((2, 48), np.uint8), r"shape \(2, 48\)"),
        (np.zeros((0, 4, 4, 3), np.uint8), r"shape \(0, 4, 4, 3\)"),
        (np.zeros((2, 30, 40, 50), np.uint8), "no axis looks like channels"),
        (np.array([{"a": 1}], object), "cannot be read as an array of numbers"),
    ],
)
def test_arrays_that_are_not_images_are_errors(tmp_path, array, message):
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    with pytest.raises(UserError, match=message):
        open_dataset(tmp_path / "x.npy")


def test_object_arrays_in_an_npz_file_are_refused(tmp_path):
    np.savez(tmp_path / "x.npz", images=np.array([{"a": 1}], object))
    with pytest.raises(UserError, match="Python objects"):
        open_dataset(tmp_path / "x.npz")


def test_object_labels_in_an_npz_file_are_refused(tmp_path):
    np.savez(tmp_path / "x.npz", images=images(1, 4, 4, 3), labels=np.array([{"a": 1}], object))
    with pytest.raises(UserError, match="labels"):
        open_dataset(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("labels", "message"),
    [([0], "1,.*2 images|2 images"), ([0.5, 1.0], "float64"), ([-2, 0], "from -2"), ([0, 70_000], "more than 65536")],
)
def test_labels_that_are_not_classes_are_errors(tmp_path, labels, message):
    np.savez(tmp_path / "x.npz", images=images(2, 4, 4, 3), labels=labels)
    with pytest.raises(UserError, match=message):
        open_dataset(tmp_path / "x.npz")


def test_splits_of_different_shapes_are_an_error(tmp_path):
    np.savez(tmp_path / "x.npz", x_train=images(2, 4, 4, 3), x_test=images(2, 5, 5, 3))
    with pytest.raises(UserError, match=r"test images are \(5, 5, 3\)"):
        open_dataset(tmp_path / "x.npz")


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_a_damaged_file_is_an_error(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x93NUMPY or not")
    with pytest.raises(UserError, match=name):
        open_dataset(tmp_path / name)


def test_a_truncated_npy_file_is_an_error(tmp_path):
    path = save(tmp_path / "x.npy", images(5, 6, 7, 3))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match="cannot be read"):
        open_dataset(path)


def test_an_npz_file_without_images_is_an_error(tmp_path):
    np.savez(tmp_path / "x.npz", weights=np.zeros(3))
    with pytest.raises(UserError, match=r"arrays weights.*images"):
        open_dataset(tmp_path / "x.npz")
