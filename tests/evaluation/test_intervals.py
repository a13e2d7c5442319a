"""Intervals: closed forms, scikit-learn-free transcriptions of the bootstrap, and what they must not claim."""

from __future__ import annotations

import numpy as np
import pytest

from carl.evaluation.intervals import Interval, Judged, difference, interval, is_paired, packed, unpacked


def draws(accuracy: float | list[float], images: int, seed: int = 0) -> np.ndarray:
    """Right and wrong of images that are right with this probability, one row per seed."""
    wanted = np.atleast_1d(accuracy)
    return np.random.default_rng(seed).random((len(wanted), images)) < wanted[:, None]


def width(found: Interval) -> float:
    return found.high - found.low


@pytest.mark.parametrize("accuracy", [0.1, 0.5, 0.93])
@pytest.mark.parametrize("images", [500, 10_000])
def test_an_accuracy_has_the_normal_approximation_of_the_binomial(accuracy: float, images: int):
    right = draws(accuracy, images)
    found, p = interval(Judged(right)), right.mean()
    expected = 1.96 * 100 * (p * (1 - p) / images) ** 0.5
    assert found.value == pytest.approx(100 * p)
    assert found.high - found.value == pytest.approx(expected, rel=0.12)
    assert found.value - found.low == pytest.approx(expected, rel=0.12)


def test_a_paired_difference_has_mcnemars_variance_and_not_that_of_independent_samples():
    first = draws(0.6, 4000)
    second = first.copy()
    second[0, :120] = ~second[0, :120]  # all but 120 images are judged alike
    found = difference(Judged(first, "same"), Judged(second, "same"))
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    apart = only_first - only_second
    expected = 196 * (only_first + only_second - apart**2 / 4000) ** 0.5 / 4000
    assert found.value == pytest.approx(100 * apart / 4000)
    assert width(found) / 2 == pytest.approx(expected, rel=0.12)
    unpaired = difference(Judged(first), Judged(second))
    assert width(unpaired) > 3 * width(found)
    assert width(unpaired) / 2 == pytest.approx(196 * (2 * 0.24 / 4000) ** 0.5, rel=0.12)


def test_the_draws_are_those_of_a_bootstrap_written_out():
    right = draws(0.7, 300, seed=3)
    random = np.random.default_rng(9)
    plain = [100 * right[0, random.integers(0, 300, 300)].mean() for _ in range(4000)]
    found = interval(Judged(right))
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(plain, [0.025, 0.975])), abs=0.7)


def test_seeds_count_as_students_t_for_few_of_them():
    """So many images that only the seeds vary: the interval is mean +- t(2) s / sqrt(3)."""
    right = np.zeros((3, 1_000_000), dtype=bool)
    for row, accuracy in zip(right, (0.50, 0.52, 0.57), strict=True):
        row[: round(accuracy * 1_000_000)] = True
    found, values = interval(Judged(right)), np.array([50.0, 52.0, 57.0])
    half = 4.303 * values.std(ddof=1) / 3**0.5
    assert found.value == pytest.approx(53.0)
    assert width(found) / 2 == pytest.approx(half, rel=0.15)


def test_a_difference_of_methods_with_seeds_is_as_wide_as_welchs():
    first, second = np.zeros((2, 3, 400_000), dtype=bool)
    for rows, wanted in ((first, (0.60, 0.61, 0.63)), (second, (0.58, 0.60, 0.62))):
        for row, accuracy in zip(rows, wanted, strict=True):
            row[: round(accuracy * 400_000)] = True
    found = difference(Judged(first, "x"), Judged(second, "x"))
    assert found.value == pytest.approx(100 * (0.6133333 - 0.60), abs=1e-3)
    assert not found.is_clear
    variance = (1.5275**2 + 2.0**2) / 3  # of the difference of means, freedom about 3.7
    assert width(found) / 2 == pytest.approx(2.86 * variance**0.5, rel=0.15)


def test_equal_encoders_do_not_differ_and_one_of_twenty_comparisons_of_noise_does():
    same = Judged(draws(0.6, 1000), "x")
    assert difference(same, same) == Interval(0.0, 0.0, 0.0)
    clear = [
        difference(Judged(draws(0.6, 400, seed), "x"), Judged(draws(0.6, 400, 1000 + seed), "x")).is_clear
        for seed in range(200)
    ]
    assert 0 < sum(clear) < 24


def test_with_three_seeds_noise_between_seeds_is_not_called_a_difference():
    """Seeds that scatter by 3 points around the same mean: an interval over images alone would see a winner."""
    random, clear = np.random.default_rng(0), 0
    for trial in range(100):
        wanted = (list(0.6 + 0.03 * random.standard_normal(3)) for _ in range(2))
        first, second = (Judged(draws(one, 2000, 2 * trial + which), "x") for which, one in enumerate(wanted))
        clear += difference(first, second).is_clear
    assert clear <= 14


@pytest.mark.parametrize("images", [1, 10, 300])
def test_no_error_among_few_images_is_not_certainty(images: int):
    everything = interval(Judged(np.ones((1, images), dtype=bool)))
    assert (everything.value, everything.high) == (100.0, 100.0)
    assert everything.low == pytest.approx(100 * 0.025 ** (1 / images))
    nothing = interval(Judged(np.zeros((2, images), dtype=bool)))
    assert (nothing.low, nothing.high) == (0.0, pytest.approx(100 - everything.low))


def test_the_same_images_give_the_same_interval():
    right = Judged(draws([0.6, 0.61, 0.59], 50_000), "x")
    assert interval(right) == interval(right)


def test_scores_are_paired_only_where_their_images_are_known_to_be_the_same():
    a, b = draws(0.5, 10), draws(0.5, 12)
    assert is_paired(Judged(a, "x"), Judged(a, "x"))
    assert not is_paired(Judged(a, "x"), Judged(a, "y"))
    assert not is_paired(Judged(a), Judged(a))
    assert not is_paired(Judged(a, "x"), Judged(b, "x"))
    assert not is_paired(Judged.counted(50.0, 10), Judged.counted(50.0, 10))
    assert Judged.together([Judged(a, "x"), Judged(a, "y")]).images == ""


@pytest.mark.parametrize("images", [1, 7, 8, 9, 2000])
def test_right_and_wrong_go_through_text(images: int):
    right = draws(0.4, images)[0]
    found = unpacked(packed(right), images)
    assert found is not None
    np.testing.assert_array_equal(found, right)
    assert len(packed(right)) <= 4 * (images // 24 + 1)


@pytest.mark.parametrize("text", ["", "not base64!", None, 3, packed(np.ones(100)), "é"])
def test_text_that_is_not_of_these_images_is_refused(text: object):
    assert unpacked(text, 10) is None
