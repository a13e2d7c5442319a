"""No false alarms after a few steps, and none held back where a run collapses; probes change nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from carl.config import merge
from carl.data.facts import DataFacts
from carl.methods import METHODS
from carl.methods.build import build_method
from carl.methods.health import EARLY, epochs_that_count
from carl.methods.run_config import read_config
from carl.records.run_directory import RunDirectory
from carl.records.verdicts import EARLY_STEPS
from carl.training.plan import PretrainRequest, plan
from carl.training.probe import Probe
from carl.training.run import carry_out
from tests.methods.examples import TINY

# Three epochs of three steps, each probed.
FEW_STEPS: dict[str, dict[str, Any]] = {
    "data": {"image_size": 16},
    "train": {"epochs": 3, "batch_size": 32},
    "probe": {"every": 1, "images": 96, "train_images": 96},
    "log": {"report": False},
}
FACTS = DataFacts("small", 96, 3, 16, 10)
SLOW = {("carp", "paper")}  # 65,536 prototypes
EVERY = [
    pytest.param(name, preset, marks=pytest.mark.slow if (name, preset) in SLOW else [])
    for name, method in METHODS.items()
    for preset in method.presets(FACTS)
]


def run(source: Path, name: str, out: Path, **sections: dict[str, Any]) -> list[dict[str, Any]]:
    """The probes of a short run."""
    given = {"data": {"source": str(source)}, "method": {"name": name}}
    carry_out(plan(PretrainRequest(merge([TINY, FEW_STEPS, given, sections]), out)))
    records = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["kind"] == "probe"]


@pytest.mark.parametrize(("name", "preset"), EVERY)
def test_a_few_healthy_steps_draw_no_alarm(name: str, preset: str, small_data: Path, tmp_path: Path):
    probes = run(small_data, name, tmp_path / "run", method={"preset": preset})
    assert len(probes) == 4
    assert [probe.get("warnings", []) for probe in probes] == [[]] * 4
    assert {probe["verdict"] for probe in probes[1:]} <= {"healthy", "too early to judge"}


def test_a_run_without_prior_is_said_to_collapse_at_the_first_probe_after_it_has(
    small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    method = {"preset": "shapes", "prior_start": 0.0, "prior_end": 0.0, "prototypes": 100, "prototype_scale": 1.0}
    probes = run(small_data, "carl", tmp_path / "run", method=method, optim={"lr": 0.3}, train={"epochs": 6})
    assert "lambda starts at 0" in capsys.readouterr().out  # before anything is trained
    verdicts = [probe["verdict"] for probe in probes[1:]]
    assert "collapsed" in verdicts
    first = verdicts.index("collapsed") + 1
    assert probes[first]["step"] < EARLY_STEPS  # nothing waits until it is no longer early
    assert any("collapsed" in words for words in probes[first]["warnings"])


@pytest.mark.parametrize("name", ["carl", "byol", "moco", "simclr"])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_probe_changes_no_bit(name: str, steps: int, small_data: Path, tmp_path: Path):
    run(small_data, name, tmp_path / "run", train={"epochs": 1}, probe={"every": 0})
    planned = plan(PretrainRequest({}, resume=str(tmp_path / "run")))
    method = build_method(planned.config, planned.facts, torch.device("cpu"))
    if steps:
        method.load_state_dict(torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["method"])
    before = {key: value.clone() for key, value in method.state_dict().items()}
    modes = [part.training for part in method.modules()]
    random = torch.get_rng_state()
    Probe(read_config(RunDirectory(tmp_path / "run")), planned.dataset, planned.views, torch.device("cpu")).run(
        method, min(1, steps), steps
    )
    after = method.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert modes == [part.training for part in method.modules()]
    assert torch.equal(random, torch.get_rng_state())


def test_epochs_of_a_few_steps_count_together():
    assert epochs_that_count(0, 0) == 0
    assert epochs_that_count(1, 2) == 1
    assert epochs_that_count(30, 90) == EARLY - 1
    assert epochs_that_count(30, EARLY_STEPS) == EARLY
    assert epochs_that_count(2, 10_000) == 2
