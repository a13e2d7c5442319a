"""The restricted reader of pickles gives back plain data, and runs nothing."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from carl.data.decoding.pickles import load_pickle
from carl.errors import UserError


def dump(tmp_path: Path, value: object, protocol: int = 2) -> Path:
    path = tmp_path / "data.pkl"
    path.write_bytes(pickle.dumps(value, protocol))
    return path


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.uint8).reshape(3, 4),
        np.asfortranarray(np.arange(12, dtype=np.int64).reshape(3, 4)),
        np.arange(3, dtype=">f4"),
        np.array(["ab", "c"]),
        np.zeros((0, 3), np.uint8),
        np.arange(24, dtype=np.int32).reshape(4, 6)[::2, 1::2],
    ],
    ids=["uint8", "columns first", "big-endian", "text", "empty", "strided"],
)
def test_arrays_survive_every_protocol(tmp_path, array, protocol):
    loaded = load_pickle(dump(tmp_path, {"data": array}, protocol))["data"]
    assert loaded.dtype == array.dtype
    np.testing.assert_array_equal(loaded, array)


def test_plain_data_survives(tmp_path):
    value = {"a": [1, -2, 2**70, 1.5, None, True], "b": b"\xff\x00", "c": "text", 4: {}}
    assert load_pickle(dump(tmp_path, value)) == value
    assert load_pickle(dump(tmp_path, {"x": np.int64(7)})) == {"x": 7}


def test_a_python_2_pickle_is_read(tmp_path):
    """What Python 2 writes for {"data": numpy.array([[1, 200]], "uint8"), "labels": [3]}."""
    raw = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b"
        b"\x87Rq\x05(K\x01K\x01K\x02\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x02\x01\xc8tbU\x06labelsq\x08]q\x09K\x03au."
    )
    (tmp_path / "old.pkl").write_bytes(raw)
    loaded = load_pickle(tmp_path / "old.pkl")
    assert loaded["data"].tolist() == [[1, 200]]
    assert loaded["labels"] == [3]


class Evil:
    """Would make a file if it were unpickled by the ordinary reader."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> object:
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_in_a_pickle_is_run(tmp_path, protocol):
    target = tmp_path / "made"
    for function in (os.mkdir, eval, getattr):
        arguments = (f"__import__('os').mkdir({str(target)!r})",) if function is eval else (str(target), "x")
        path = dump(tmp_path, {"data": Evil(function, *arguments[: 1 if function is os.mkdir else 2])}, protocol)
        with pytest.raises(UserError, match="not loaded"):
            load_pickle(path)
    assert not target.exists()


@pytest.mark.parametrize(
    "value",
    [OrderedDict(a=1), np.array([{"a": 1}], object), np.zeros(2, [("a", "u1")]), np.float32, {1, 2}, 1j],
    ids=["class", "objects", "record", "type", "set", "complex"],
)
def test_anything_but_plain_data_is_refused(tmp_path, value):
    with pytest.raises(UserError, match=r"asks for|damaged"):
        load_pickle(dump(tmp_path, value, 4))


def test_other_codecs_are_refused(tmp_path):
    (tmp_path / "x.pkl").write_bytes(b"c_codecs\nencode\n(Vabc\nVzip\ntR.")
    with pytest.raises(UserError, match="codec 'zip'"):
        load_pickle(tmp_path / "x.pkl")


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x04", b"(" * 100])
def test_damaged_pickles_are_errors_of_one_line(tmp_path, content):
    (tmp_path / "x.pkl").write_bytes(content)
    with pytest.raises(UserError, match=r"x\.pkl is damaged") as caught:
        load_pickle(tmp_path / "x.pkl")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        load_pickle(tmp_path / "none.pkl")
