"""Every method in whole small runs: resumed equals uninterrupted, labels have no say, parts of batches, small views."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from carl.config import merge
from carl.data.batches.base import Batch
from carl.data.sources.shapes import make_shapes
from carl.methods import METHODS
from carl.training.learner import Learner
from carl.training.plan import PretrainRequest, plan
from carl.training.run import carry_out
from tests.methods.examples import SMALL, TINY

ALL = pytest.mark.parametrize("name", list(METHODS))
# Two epochs of four steps; nothing but the training.
QUICK: dict[str, dict[str, Any]] = {
    "data": {"image_size": 16, "limit": 32, "limit_by": "first"},  # a balanced part would depend on the labels
    "train": {"epochs": 2, "batch_size": 8},
    "probe": {"every": 0},
    "log": {"report": False, "every": 4},
}


def run(source: Path, name: str, out: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    """The method's state after a run, queues and slow copies in it."""
    given = {"data": {"source": str(source)}, "method": {"name": name, **SMALL.get(name, {})}}
    carry_out(plan(PretrainRequest(merge([TINY, QUICK, given, sections]), out)))
    return state(out)


def state(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(out / "checkpoint.pt", weights_only=True)["method"]
    return found


def differing(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    assert first.keys() == second.keys()
    return [key for key in first if not torch.equal(first[key], second[key])]


def steps(out: Path) -> list[dict[str, Any]]:
    records = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["kind"] == "step"]


@pytest.fixture(scope="module")
def whole(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each method that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    for name in METHODS:
        run(small_data, name, folder / name)
    return {name: folder / name for name in METHODS}


@pytest.fixture(scope="module")
def other_labels(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same images, with their labels turned by one place."""
    file = tmp_path_factory.mktemp("turned") / "small.npz"
    with np.load(small_data) as arrays:
        turned = {key: np.roll(value, 1) if key.startswith("y") else value for key, value in arrays.items()}
    np.savez(file, **turned)
    return file


@ALL
def test_stopped_in_the_middle_of_an_epoch_and_resumed_all_state_ends_the_same(
    whole: dict[str, Path], small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    plain_step = Learner.take_step

    def step_then_signal(learner: Learner, batch: Batch) -> dict[str, torch.Tensor]:
        metrics = plain_step(learner, batch)
        if learner.steps_done == 6:  # the second of the second epoch: PCL has clustered, SwAV's queue has come in
            signal.raise_signal(signal.SIGINT)
        return metrics

    monkeypatch.setattr(Learner, "take_step", step_then_signal)
    with pytest.raises(SystemExit) as ended:
        run(small_data, name, tmp_path / "run")
    assert ended.value.code == 130
    assert torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["step"] in (6, 7)
    monkeypatch.undo()
    carry_out(plan(PretrainRequest({}, resume=str(tmp_path / "run"))))
    assert differing(state(tmp_path / "run"), state(whole[name])) == []


@ALL
def test_labels_have_no_say_in_what_is_learned_except_with_labels(
    whole: dict[str, Path], other_labels: Path, tmp_path: Path, name: str
):
    changed = differing(run(other_labels, name, tmp_path / "run"), state(whole[name]))
    assert bool(changed) == METHODS[name].needs_labels


@ALL
def test_batches_in_parts_and_a_last_batch_of_odd_size_train(small_data: Path, tmp_path: Path, name: str):
    train = {"accumulate": 2, "drop_last": False}
    run(small_data, name, tmp_path / "run", data={"limit": 21}, train=train, log={"every": 1})
    records = steps(tmp_path / "run")
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]  # of 8, 8 and 5 images
    for record in records:
        assert all(np.isfinite(value) for value in record.values() if isinstance(value, float)), record


FIGURES = {
    "carl": {"used", "entropy", "agreement", "lambda"},
    "simclr": {"spread", "ranked_first"},
    "byol": {"spread", "momentum", "target_distance"},
    "moco": {"spread", "ranked_first", "queue_filled", "queue_age", "target_distance"},
    "pcl": {"spread", "info_nce", "proto_nce", "queue_filled", "queue_age", "target_distance", "largest_cluster"},
    "swav": {"spread", "used", "entropy", "agreement", "queue_filled"},
    "supervised": {"spread", "train_accuracy"},
    "simsiam": {"spread"},
    "carp": {"used", "entropy", "agreement", "momentum", "target_distance"},
}


@ALL
def test_each_method_logs_the_figures_of_its_own_health(whole: dict[str, Path], name: str):
    assert steps(whole[name])[-1].keys() >= {"loss", "lr"} | FIGURES.get(name, {"spread"})


@pytest.mark.parametrize("name", ["carl", "swav", "byol"])
def test_two_large_and_six_small_views_train(small_data: Path, tmp_path: Path, name: str):
    run(small_data, name, tmp_path / "run", views={"pipeline": "swav_multicrop"}, train={"epochs": 1})
    assert np.isfinite(steps(tmp_path / "run")[-1]["loss"])


@pytest.mark.parametrize("name", ["supervised", "pcl"])
def test_probe_and_report_take_one_view_and_late_prototypes(small_data: Path, tmp_path: Path, name: str):
    run(small_data, name, tmp_path / "run", probe={"every": 1, "images": 16}, log={"report": True, "every": 4})
    records = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    probes = [record for record in records if record["kind"] == "probe"]
    assert [probe["epoch"] for probe in probes] == [0, 1, 2]
    assert all("spread" in probe and "knn" in probe for probe in probes)
    assert ["used" in probe for probe in probes] == [name == "pcl" and probe["epoch"] > 1 for probe in probes]
    assert (tmp_path / "run" / "report.html").exists()


def test_unlabelled_images_set_apart_are_left_out_where_labels_are_needed(tmp_path: Path):
    (images, labels), (others, _) = make_shapes(24, 0), make_shapes(40, 1)
    np.savez(tmp_path / "like-stl.npz", x_train=images, y_train=labels, x_unlabeled=others)
    for name, count in (("supervised", 24), ("simclr", 40)):
        run(tmp_path / "like-stl.npz", name, tmp_path / name, data={"limit": None}, train={"epochs": 1})
        assert json.loads((tmp_path / name / "data.json").read_text())["images"] == count
        assert steps(tmp_path / name)[-1]["step"] == count // 8
