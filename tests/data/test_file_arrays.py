"""Arrays that stay in their file: the same numbers as NumPy's, whatever is asked for and from however many threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carl.data.decoding.file_arrays import FileArray, open_array

NUMBERS = np.random.default_rng(0).integers(0, 256, (23, 4, 5, 3), np.uint8)


@pytest.fixture(params=["rows first", "columns first", "without preadv"])
def array(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileArray:
    if request.param == "without preadv":
        monkeypatch.delattr(os, "preadv", raising=False)
    np.save(tmp_path / "x.npy", np.asfortranarray(NUMBERS) if request.param == "columns first" else NUMBERS)
    return open_array(tmp_path / "x.npy")


@pytest.mark.parametrize(
    "rows",
    [
        0, -1, np.int64(7), slice(None), slice(3, 9), slice(9, 3), slice(-4, None), slice(20, 99), slice(1, None, 5),
        slice(None, None, -1), np.array([5, 6, 7, 2, 2, 22, 0]), [3, -1, 4], np.array([], np.int64),
        np.arange(23) % 3 == 0, (slice(None), 0, 0, 0), (2, slice(1, 3)), (slice(2, 5), slice(None), 1),
    ],
)  # fmt: skip
def test_indexing_gives_what_numpy_gives(array: FileArray, rows: Any):
    found = array[rows]
    np.testing.assert_array_equal(found, NUMBERS[rows])
    assert found.shape == NUMBERS[rows].shape


@pytest.mark.parametrize("rows", [23, -24, [0, 23]])
def test_a_row_that_is_not_there_is_an_index_error(array: FileArray, rows: Any):
    with pytest.raises(IndexError):
        array[rows]


@pytest.mark.parametrize(
    "all_rows",
    [
        np.asarray,
        lambda array: np.stack(list(array)),
        lambda array: np.concatenate(list(array.blocks(150))),
        lambda array: array.with_last_axis()[:][..., 0],
    ],
)
def test_all_rows_are_read_in_order(array: FileArray, all_rows: Callable[[FileArray], np.ndarray]):
    np.testing.assert_array_equal(all_rows(array), NUMBERS)


def test_the_first_rows_are_not_read_before_they_are_asked_for(array: FileArray):
    first = array.first(7)
    assert (len(first), first.shape, first.nbytes) == (7, (7, 4, 5, 3), 420)
    np.testing.assert_array_equal(first[np.array([6, 0])], NUMBERS[[6, 0]])
    np.testing.assert_array_equal(first[-2:], NUMBERS[5:7])
    with pytest.raises(IndexError):
        first[7]


def test_threads_do_not_get_each_others_rows(array: FileArray):
    rows = [np.random.default_rng(seed).permutation(23) for seed in range(400)]
    with ThreadPoolExecutor(8) as pool:
        for places, found in zip(rows, pool.map(array.__getitem__, rows), strict=True):
            np.testing.assert_array_equal(found, NUMBERS[places])
