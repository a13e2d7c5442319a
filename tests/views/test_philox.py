"""The counter-based generator against its published answers and a transcription in Python integers."""

from __future__ import annotations

import random

import pytest
import torch

from carl.views.philox import philox, uniforms

MASK = 0xFFFFFFFF


def philox_in_python_integers(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """Random123's philox4x32-10, with integers that do not wrap."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return tuple(c)


def philox_of_one(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    return tuple(int(word) for word in philox((c0, c1, c2, c3), key))


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [  # Random123, examples/kat_vectors
        ((0,) * 4, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((MASK,) * 4, (MASK, MASK), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counter, key, answer):
    assert philox_of_one(counter, key) == answer


def test_philox_equals_its_transcription_for_arbitrary_words():
    source = random.Random(0)
    for _ in range(50):
        counter = tuple(source.getrandbits(32) for _ in range(4))
        key = (source.getrandbits(32), source.getrandbits(32))
        assert philox_of_one(counter, key) == philox_in_python_integers(counter, key)


def test_uniforms_are_the_philox_words_of_block_view_sample_and_epoch():
    seed, epoch, sample, view = (7 << 32) + 5, 11, 123_456, 3
    numbers = uniforms(seed, epoch, torch.tensor([sample]), view, 6)
    words = [word for block in range(2) for word in philox_in_python_integers((block, view, sample, epoch), (5, 7))]
    assert numbers.tolist() == [[(word >> 8) / 2**24 for word in words[:6]]]


def test_numbers_of_a_sample_do_not_depend_on_its_batch_or_on_the_count():
    whole = uniforms(1, 2, torch.arange(100), 0, 33)
    alone = uniforms(1, 2, torch.tensor([41]), 0, 7)
    assert torch.equal(whole[41:42, :7], alone)


@pytest.mark.parametrize("change", [{"seed": 2}, {"epoch": 1}, {"view": 1}, {"indices": torch.arange(1, 65)}])
def test_seed_epoch_view_and_index_each_change_the_numbers(change):
    base = {"seed": 1, "epoch": 0, "indices": torch.arange(64), "view": 0, "count": 4}
    assert (uniforms(**base) != uniforms(**(base | change))).float().mean() > 0.99


def test_uniforms_are_uniform_and_uncorrelated():
    numbers = uniforms(0, 0, torch.arange(20_000), 0, 8)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = torch.histc(numbers, bins=100, min=0, max=1)
    chi_squared = ((counts - 1600) ** 2 / 1600).sum()
    assert 55 < chi_squared < 155  # 99 degrees of freedom, about four standard deviations either way
    correlations = torch.corrcoef(numbers.T) - torch.eye(8)
    assert correlations.abs().max() < 0.03


def test_uniforms_take_the_device_of_the_indices():
    assert uniforms(0, 0, torch.arange(4, device="meta"), 0, 5).device.type == "meta"
