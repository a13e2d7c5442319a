"""Who is ahead: no winner from noise, none that has collapsed, and the words for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from carl.evaluation.intervals import Interval, Judged
from carl.evaluation.results import RANDOM_WEIGHTS
from carl.evaluation.standing import Entry, standing


def entry(name: str, right: int, images: int = 1000, unhealthy: str = "", seeds: int = 1) -> Entry:
    rows = np.zeros((seeds, images), dtype=bool)
    rows[:, :right] = True
    return Entry(name, Judged(rows, "same"), unhealthy)


def shifted(name: str, right: int, by: int) -> Entry:
    """As many right, but other images."""
    return Entry(name, Judged(np.roll(entry(name, right).judged.right, by, axis=1), "same"))


def test_a_large_lead_is_a_winner_with_its_interval():
    found = standing([entry("carl", 700), entry("simclr", 600)])
    assert found.has_winner
    assert found.sentences()[0].startswith("carl 70.0% is ahead of simclr (+10.0 points, +8.")
    assert "compared image by image" in found.footnote()


def test_a_lead_within_the_noise_is_no_clear_difference_whoever_is_named_first():
    for entries in (
        [shifted("carl", 605, 300), entry("simclr", 600)],
        [entry("simclr", 600), shifted("carl", 605, 300)],
    ):
        found = standing(entries)
        assert not found.has_winner
        assert found.sentences()[0].startswith("No clear difference between carl 60.5% and simclr (+0.5 points, -")


def test_a_collapsed_training_is_not_crowned_and_said_to_be():
    found = standing([entry("pcl", 900, unhealthy="partly collapsed"), entry("carl", 700), entry("byol", 500)])
    assert found.best is not None
    assert found.best.name == "carl"
    text = " ".join(found.sentences())
    assert "pcl 90.0% is partly collapsed, so its accuracy does not count as a lead." in text
    assert text.startswith("carl 70.0% is ahead of byol")


def test_a_collapsed_training_that_is_behind_is_listed_as_behind():
    found = standing([entry("carl", 700), entry("pcl", 500, unhealthy="collapsed")])
    assert [one.other.name for one in found.behind] == ["pcl"]


def test_where_nothing_is_healthy_there_is_no_winner():
    found = standing([entry("a", 900, unhealthy="collapsed"), entry("b", 500, unhealthy="partly collapsed")])
    assert found.best is None
    assert found.sentences() == ["No winner: none of the trainings is healthy."]


def test_some_may_be_level_with_the_best_while_others_are_behind():
    found = standing([entry("a", 700), shifted("b", 698, 250), entry("c", 400)])
    first, second, *_ = found.sentences()
    assert first.startswith("No clear difference between a 70.0% and b (")
    assert second.startswith("a is ahead of c (+30.0 points")


def test_one_entry_alone_says_nothing():
    assert standing([entry("a", 700)]).sentences() == []
    assert standing([entry("a", 700)]).footnote() == ""


@pytest.mark.parametrize(("seeds", "warned"), [(1, True), (3, False)])
def test_one_seed_is_said_to_be_one_beside_the_answer(seeds: int, warned: bool):
    frozen = Entry("random", entry("random", 300).judged, frozen=True)  # has no seeds to speak of
    found = standing([entry("a", 700, seeds=seeds), entry("b", 500, seeds=seeds), frozen])
    assert ("With one seed, another seed may give another order." in found.sentences()) == warned
    assert ("test images and seeds" in found.footnote()) != warned


def with_gain(one: Entry, low: float, high: float, baseline: str = RANDOM_WEIGHTS) -> Entry:
    return replace(one, gain=Interval((low + high) / 2, low, high), baseline=baseline)


def test_a_lead_without_a_clear_gain_over_random_weights_is_no_lead():
    carl, simclr = with_gain(entry("carl", 600), -2.0, 0.5), with_gain(entry("simclr", 700), -0.5, 2.0)
    frozen = Entry("random", entry("random", 400).judged, frozen=True)
    found = standing([carl, simclr, frozen])
    assert not found.has_winner
    assert found.sentences() == [
        "No winner: neither simclr 70.0% nor carl 60.0% is clearly better than random weights."
    ]
    assert found.footnote() == ""  # there are no brackets
    found = standing([carl, simclr, with_gain(entry("byol", 300), -9.0, -1.0)])
    assert found.sentences() == [
        "No winner: none of simclr 70.0%, carl 60.0% and byol 30.0% is clearly better than random weights."
    ]


def test_one_without_a_clear_gain_is_not_crowned_over_one_that_has_it():
    found = standing([with_gain(entry("a", 700), -0.5, 2.0, "the start"), with_gain(entry("b", 600), 4.0, 6.0)])
    assert not found.has_winner
    assert found.sentences() == ["No winner: a 70.0% is not clearly better than the start."]


def test_a_clear_gain_of_the_best_leaves_the_answer_as_it_is():
    found = standing([with_gain(entry("a", 700), 0.5, 2.0), with_gain(entry("b", 600), -4.0, 6.0)])
    assert found.has_winner
    assert found.sentences()[0].startswith("a 70.0% is ahead of b")


def test_scores_of_unknown_images_are_compared_unpaired_and_said_to_be():
    found = standing([Entry("a", Judged.counted(70.0, 1000)), Entry("b", Judged.counted(50.0, 1000))])
    assert found.has_winner
    assert "not known image by image" in found.footnote()
