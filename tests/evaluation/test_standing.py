"""Who is ahead: no winner from noise, none that has collapsed, and the words for it."""

from __future__ import annotations

import numpy as np
import pytest

from carl.evaluation.intervals import Judged
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
def test_one_seed_is_said_to_be_one(seeds: int, warned: bool):
    frozen = Entry("random", entry("random", 300).judged, frozen=True)  # has no seeds to speak of
    text = standing([entry("a", 700, seeds=seeds), entry("b", 500, seeds=seeds), frozen]).footnote()
    assert ("With one seed" in text) == warned
    assert ("test images and seeds" in text) != warned


def test_scores_of_unknown_images_are_compared_unpaired_and_said_to_be():
    found = standing([Entry("a", Judged.counted(70.0, 1000)), Entry("b", Judged.counted(50.0, 1000))])
    assert found.has_winner
    assert "not known image by image" in found.footnote()
