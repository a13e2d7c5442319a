"""Result files read again without torch, against what the evaluation writes."""

from __future__ import annotations

from typing import Any

import pytest

from carl.evaluation.protocols import PROTOCOLS
from carl.evaluation.results import RunIdentity, read_scores

RUN = RunIdentity(encoder_hash="aa", source="/data/photos", fingerprint="f00d")


def result(**more: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "protocol": "linear", "kind": "offline: SGD", "target": "run", "data": "/data/photos", "epochs": 100,
        "data_fingerprint": "f00d", "encoder_hash": "aa", "hyperparameters": {},
        "centre": PROTOCOLS[more.get("protocol", "linear")].centre,
        "accuracy": {"trained": {"top-1": 50.0}, "random": {}},
    }  # fmt: skip
    return known | more


def test_scores_of_other_images_than_the_protocols_stand_apart_and_say_so():
    results = [result(centre=1.0), result(centre=None), result(held_out=500), result()]
    found = read_scores(results, RUN)
    assert [score.asides for score in found] == [[], ["whole images"], ["whole images"], ["held-out images"]]
    assert found[1].label == "linear, offline, whole images, top-1"
    assert found[1].identity == found[2].identity != found[0].identity
    old, new = (read_scores([result(protocol="knn", centre=centre)], RUN)[0] for centre in (None, 1.0))
    assert old.identity == new.identity


def test_no_result_is_of_a_run_whose_weights_are_missing_or_damaged():
    (score,) = read_scores([result(encoder_hash=None)], RunIdentity("", "/data/photos", "f00d"))
    assert score.asides == ["other weights than the run's last"]


def test_scores_that_stand_for_the_run_come_first_whatever_their_files_are_called():
    results = [result(epochs=1), result(encoder_hash="bb", target="run/encoders/epoch-0007.safetensors"), result()]
    found = read_scores(results, RUN)
    assert [score.asides for score in found] == [[], ["1 of 100 epochs"], ["weights of epoch 7"]]
    assert found[1].label == "linear, offline, 1 of 100 epochs, top-1"


@pytest.mark.parametrize(
    ("protocol", "change", "same"),
    [
        ("linear", {"crop_min": 0.3}, False),
        ("knn", {"crop_min": 0.3}, True),  # whole images
        ("knn", {"train_images": 100}, False),
    ],
)
def test_scores_of_other_conditions_are_told_apart(protocol: str, change: dict[str, Any], same: bool):
    usual = {"protocol": protocol, "crop_min": 0.08, "train_images": 5000}
    (one,), (other,) = (read_scores([result(**usual | more)], RUN) for more in ({}, change))
    assert (one.identity == other.identity) == same


def test_data_are_the_same_by_their_fingerprint_and_only_without_one_by_their_name():
    elsewhere, other = result(data="/b/photos"), result(data_fingerprint="beef")
    assert [m.own_data for m in read_scores([elsewhere, other], RUN)] == [True, False]
    old = RunIdentity("aa", "/data/photos", "")
    assert [m.own_data for m in read_scores([result(), result(data="/b/photos")], old)] == [True, False]
