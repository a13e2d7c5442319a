"""The plan of a run: complete, worked out without a trace, and the same whoever carries it out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carl import precision
from carl.config import Layer, merge
from carl.errors import UserError
from carl.methods.run_config import read_config
from carl.training.plan import Plan, PretrainRequest, plan
from carl.training.run import carry_out
from tests.conftest import SMALL, Run

TINY: Layer = {
    "model": {"backbone": "test_resnet", "hidden_dim": 16, "output_dim": 8},
    "train": {"epochs": 1, "batch_size": 48},
    "probe": {"every": 0},
    "log": {"report": False},
}


def layer_for(source: Path, **sections: dict[str, Any]) -> Layer:
    named = {"data": {"source": str(source)}, "method": {"preset": "paper", "prototypes": 7}}
    return merge([TINY, named, sections])


def test_a_plan_leaves_no_trace_and_says_what_it_is(small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    planned = plan(PretrainRequest(layer_for(small_data)))
    assert list(tmp_path.iterdir()) == []
    assert planned.in_words() == (
        f"carl (paper preset) on {small_data}: 96 images, views of 32 px, test_resnet, 7 prototypes, 1 epoch, batch 48"
    )
    assert (planned.run_name, planned.resumed, planned.extended_from) == ("small-carl", None, None)
    assert len(planned.views.recipes) == 2
    assert planned.config.probe.every == 0


def test_a_plan_is_of_data_as_they_are_and_its_notes_come_from_data_and_method(tmp_path: Path):
    images = np.random.default_rng(0).integers(0, 256, (64, 16, 16, 1), np.uint8)
    np.savez(tmp_path / "grey.npz", images=images, labels=np.repeat(np.arange(8), 8))
    method = {"prior_start": 0.5, "prior_end": 0.5}
    notes = plan(
        PretrainRequest(layer_for(tmp_path / "grey.npz", data={"limit": 48, "limit_by": "first"}, method=method))
    ).notes
    assert len(notes) == 3
    assert "1 channel: jitter" in notes[0]
    assert "are of 6 of the 8 classes" in notes[1]
    assert "lambda starts at 0.5" in notes[2]


def test_a_plan_settles_the_precision_for_this_machine_so_that_a_resumed_run_keeps_it(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    layer = layer_for(small_data, train={"precision": "auto", "device": "cpu"})
    monkeypatch.delenv("CARL_PRECISION")
    monkeypatch.setattr(precision, "instruction_sets", lambda: ("avx2", "avx512_bf16"))
    made = carry_out(plan(PretrainRequest(layer, tmp_path / "run")))
    monkeypatch.setattr(precision, "instruction_sets", lambda: ("avx2",))
    assert plan(PretrainRequest({}, resume=str(made))).config.train.precision == "bf16"
    assert (
        plan(PretrainRequest(layer, resume=str(made))).config.train.precision == "bf16"
    )  # also if `auto` is said again
    assert plan(PretrainRequest(layer)).config.train.precision == "fp32"


@pytest.fixture
def run(small_data: Path, tmp_path: Path) -> Path:
    return carry_out(plan(PretrainRequest(layer_for(small_data), tmp_path / "run", command=("a", "test"))))


def resumed(run: Path, **train: int) -> Plan:
    return plan(PretrainRequest({"train": train}, resume=str(run)))


def test_a_plan_that_resumes_has_the_configuration_of_the_run_and_knows_if_it_gets_longer(run: Path):
    planned = resumed(run)
    assert planned.resumed is not None
    assert (planned.resumed.path, planned.extended_from, planned.config.train.epochs) == (run, None, 1)
    assert planned.config == read_config(planned.resumed)
    longer = resumed(run, epochs=3)
    assert (longer.extended_from, longer.config.train.epochs) == (1, 3)
    with pytest.raises(UserError, match=r"another configuration \(train.seed: 0 -> 1\)"):
        resumed(run, seed=1)


def test_resume_auto_goes_on_with_a_run_and_starts_where_there_is_none(run: Path, small_data: Path, tmp_path: Path):
    assert plan(PretrainRequest(layer_for(small_data), tmp_path / "new", "auto")).resumed is None
    assert plan(PretrainRequest(layer_for(small_data), run, "auto")).resumed is not None
    with pytest.raises(UserError, match="exists; choose another --out"):
        plan(PretrainRequest(layer_for(small_data), run))
    with pytest.raises(UserError, match="leave out --out"):
        plan(PretrainRequest({}, tmp_path / "new", str(run)))
    with pytest.raises(UserError, match="add --out RUN"):
        plan(PretrainRequest(layer_for(small_data), resume="auto"))
    with pytest.raises(UserError, match="no DATA given"):
        plan(PretrainRequest({}))


def test_a_run_that_is_alone_speaks_and_reports_whatever_rank_the_environment_names(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carl: Run
):
    monkeypatch.setenv("RANK", "3")  # as a scheduler may leave it behind
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    done = carl("pretrain", small_data, *SMALL, "--epochs", "1", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert f"encoder: run{os.sep}encoder.safetensors" in done.stdout
    assert (tmp_path / "run" / "report.html").exists()
