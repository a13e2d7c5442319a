"""A run whose length is given in steps and ends within an epoch."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from carl.data.batches.base import Batch
from carl.errors import UserError
from carl.training.forecast import Forecast, Length
from carl.training.learner import Learner
from carl.training.plan import PretrainRequest, plan
from carl.training.run import carry_out
from tests.methods.test_runs import differing, run, state, steps

# Of four steps an epoch; a probe at the end.
SIX: dict[str, Any] = {"train": {"steps": 6, "epochs": 50}, "probe": {"every": 1, "images": 16}}


def test_a_run_of_six_steps_ends_in_its_second_epoch_with_its_rate_at_the_end(small_data: Path, tmp_path: Path):
    run(small_data, "simclr", tmp_path / "run", **SIX)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(record["step"], record["epoch"]) for record in records if record["kind"] == "probe"] == [
        (0, 0), (4, 1), (6, 2)
    ]  # fmt: skip
    last = steps(tmp_path / "run")[-1]
    assert (last["step"], last["epoch"]) == (6, 1.5)
    config = plan(PretrainRequest({}, resume=str(tmp_path / "run"))).config
    assert (config.train.steps, config.train.epochs) == (6, 2)


def test_a_run_of_six_steps_that_is_stopped_resumes_with_the_same_bits(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = run(small_data, "simclr", tmp_path / "whole", **SIX)
    plain_step = Learner.take_step

    def step_then_signal(learner: Learner, batch: Batch) -> Any:
        metrics = plain_step(learner, batch)
        if learner.steps_done == 5:
            signal.raise_signal(signal.SIGINT)
        return metrics

    monkeypatch.setattr(Learner, "take_step", step_then_signal)
    with pytest.raises(SystemExit):
        run(small_data, "simclr", tmp_path / "run", **SIX)
    monkeypatch.undo()
    with pytest.raises(UserError, match="another configuration"):
        plan(PretrainRequest({"train": {"epochs": 9}}, resume=str(tmp_path / "run")))
    carry_out(plan(PretrainRequest({}, resume=str(tmp_path / "run"))))
    assert differing(state(tmp_path / "run"), whole) == []


def test_the_forecast_ends_with_the_last_step():
    forecast = Forecast(Length(epochs=2, steps_per_epoch=4, probe_every=0, steps=6))
    for _ in range(3):
        forecast.add_step(1.0)
    assert forecast.left(3) == 3.0
