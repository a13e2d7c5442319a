"""Decoding in threads and in processes gives the same, in order."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
from PIL import Image

from carl.data.decoding import parallel
from carl.data.decoding.parallel import decode_all, serve
from carl.data.listing import EncodedImage, Unusable


@pytest.fixture
def images(tmp_path) -> list[EncodedImage]:
    made = []
    for i in range(150):
        stream = io.BytesIO()
        Image.new("RGB", (4, 5), (i, 0, 0)).save(stream, "PNG")
        made.append(EncodedImage(str(i), stream.getvalue(), i))
    (tmp_path / "7.png").write_bytes(made[7].content)
    made[7] = EncodedImage("7", tmp_path / "7.png", 7)
    made[40] = EncodedImage("40", b"junk", 40)
    made[41] = EncodedImage("41", Unusable("because"), 41)
    return made


def check(results: list[tuple[EncodedImage, np.ndarray | str]]) -> None:
    assert [image.label for image, _ in results] == list(range(150))
    for label, (_, pixels) in enumerate(results):
        if label == 40:
            assert pixels == "not an image in a known format"
        elif label == 41:
            assert pixels == "because"
        else:
            assert pixels.shape == (5, 4, 3)
            assert pixels[0, 0].tolist() == [label, 0, 0]


def test_threads(images):
    check(list(decode_all(images, len(images), None)))


@pytest.mark.parametrize("alive", [True, False], ids=["alive", "dying"])
def test_processes_give_the_same_even_if_they_die(images, monkeypatch, alive):
    monkeypatch.setattr(parallel, "PROCESSES_FROM", 1)
    monkeypatch.setattr(parallel, "available_cores", lambda: 2)
    local: list[object] = []

    def noting(content, shape, decode=parallel.decode):
        local.append(content)
        return decode(content, shape)

    monkeypatch.setattr(parallel, "decode", noting)
    if not alive:
        monkeypatch.setattr(parallel.sys, "path", [])  # so that they cannot import what they need
    check(list(decode_all(images, len(images), None)))
    assert bool(local) == (not alive)


def test_reading_is_only_a_little_ahead_of_decoding():
    read = 0

    def endless():
        nonlocal read
        while True:
            read += 1
            yield EncodedImage("", b"", 0)

    results = decode_all(endless(), 0, None)
    for _ in range(10):
        next(results)
    results.close()
    assert read <= 32 * 3 * parallel.available_cores()


def test_images_that_wait_in_memory_are_few_where_they_are_large():
    taken, large = 0, bytes(40 * 2**20)

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield EncodedImage("", large, 0)

    results = decode_all(endless(), 0, None)
    next(results)
    results.close()
    assert 1 < taken <= parallel.BYTES_AHEAD // len(large) + 1


def test_the_server_answers_until_its_input_ends():
    requests = io.BytesIO(pickle.dumps(([b""], None, False)) * 2)
    answers = io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel.sys, "stdout", parallel.sys.stdout)  # which the server replaces
        serve(requests, answers)
    answers.seek(0)
    assert [pickle.load(answers) for _ in range(2)] == [[("the file is empty", None)]] * 2
