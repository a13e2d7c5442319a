"""A run whose length nobody gave fits the time of the machine. The pace is made up here, except where it is tested."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from carl.config import Layer
from carl.data.facts import DataFacts
from carl.methods import METHODS
from carl.methods.run_config import read_config
from carl.records.run_directory import RunDirectory
from carl.training import budget, trial
from carl.training.budget import LONGEST_USUAL_RUN, Pace, remark_on_speed, shorter_lengths
from carl.training.plan import PretrainRequest, fitted, plan
from tests.conftest import SMALL, Run
from tests.weights import assert_same_weights

OPEN = [word for word in SMALL if word not in ("--epochs", "3")] + ["--set", "log.report=false"]


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the seconds of an epoch. The usual numbers of epochs become 2, 4 and 6, which is that of the small data."""
    monkeypatch.setattr(budget, "CHOICES", (2, 4, 6))
    return lambda seconds: monkeypatch.setattr("carl.training.run.measured_pace", lambda plan, device: Pace(seconds))


@pytest.mark.parametrize(
    ("most", "seconds", "epochs"),
    [(200, 27, None), (200, 28, 150), (75, 60, None), (75, 120, 30), (75, 3600, 10), (20, 500, 10), (10, 9999, None)],
)
def test_a_slow_machine_gets_fewer_epochs_and_a_fast_one_the_usual_number(
    most: int, seconds: float, epochs: int | None
):
    assert next(iter(shorter_lengths(most, Pace(seconds))), None) == epochs


def test_probes_count_too():
    assert Pace(60, probe=30).of_run(30) == 30 * 60 + 31 * 30
    assert Pace(60, probe=30).of_run(200) == 200 * 60 + 21 * 30
    assert Pace(60, probe=30, probe_every=0).of_run(30) == 30 * 60
    assert shorter_lengths(75, Pace(60, probe=60))[0] == 50


def test_the_remark_says_how_long_why_and_how_to_get_more():
    assert remark_on_speed(30, 75, Pace(120)) == (
        "30 epochs instead of 75, about 1h00m: an epoch takes about 2m00s here, and without --epochs a run stays "
        "within 1h30m; --epochs 75 takes about 2h30m"
    )
    assert "10h00m: an epoch takes about 1h00m here, and a run has no fewer unless" in remark_on_speed(
        10, 75, Pace(3600)
    )


def test_a_slow_machine_trains_less_and_its_run_is_resumed_and_repeated_with_the_same_bits(
    carl: Run, small_data: Path, tmp_path: Path, pace: Callable[[float], None]
):
    pace(LONGEST_USUAL_RUN / 3)
    done = carl("pretrain", small_data, *OPEN, "--out", "run")
    assert done.returncode == 0, done.stderr
    (said,) = [line for line in done.stdout.splitlines() if "instead of 6" in line]
    assert said.startswith("2 epochs instead of 6, about 1h00m")
    assert "--epochs 6 takes about 3h00m" in said
    assert "as usual on a CPU" not in done.stdout
    config = read_config(RunDirectory(tmp_path / "run"))
    assert (config.train.epochs, config.method.model_dump()["prior_epochs"]) == (2, 1)
    pace(LONGEST_USUAL_RUN / 100)
    again = carl("pretrain", "--config", "run/config.toml", "--out", "again")
    assert again.returncode == 0, again.stderr
    assert_same_weights(tmp_path / "run", tmp_path / "again")
    resumed = carl("pretrain", "--resume", "run")
    assert resumed.returncode == 0, resumed.stderr
    assert "at step 12 of 12" in resumed.stdout


def test_the_steps_that_are_timed_leave_no_trace_in_the_weights(
    carl: Run, small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(budget, "CHOICES", (1, 2))
    measured: list[Pace] = []
    plain = trial.measured_pace

    def timed(*arguments: object) -> Pace:
        measured.append(plain(*arguments))  # type: ignore[arg-type]
        return measured[-1]

    monkeypatch.setattr("carl.training.run.measured_pace", timed)
    assert carl("pretrain", small_data, *OPEN, "--out", "open").returncode == 0
    assert measured, "no steps were timed, so the weights prove nothing"
    assert all(pace.epoch > 0 for pace in measured)
    assert carl("pretrain", small_data, *OPEN, "--epochs", "2", "--out", "given").returncode == 0
    assert_same_weights(tmp_path / "open", tmp_path / "given")
    assert (tmp_path / "open" / "config.toml").read_text() == (tmp_path / "given" / "config.toml").read_text()


def planned(data: Path, **sections: dict[str, object]) -> Layer:
    train = {"device": "cpu", "batch_size": 16, **sections.pop("train", {})}
    return {"data": {"source": str(data)}, "model": {"backbone": "test_resnet"}, "train": train, **sections}


def test_a_length_is_open_only_if_nothing_gives_it(small_data: Path):
    def is_open(fit_time: bool = True, **sections: dict[str, object]) -> bool:
        return plan(PretrainRequest(planned(small_data, **sections), fit_time=fit_time)).open_length is not None

    assert is_open()
    assert not is_open(fit_time=False)  # runs of `carl compare` and `carl reproduce`
    assert not is_open(train={"epochs": 50})
    assert not is_open(train={"steps": 50})
    assert not budget.follows_speed(DataFacts("cifar10", 50_000, 3, 32, 10), 200)  # the paper's


def test_other_values_may_ask_for_more_epochs_than_there_is_time_for(small_data: Path):
    layer = planned(small_data, train={"keep_epochs": (60,)}, optim={"warmup_epochs": 15.0})
    found = fitted(plan(PretrainRequest(layer, fit_time=True)), Pace(3600))
    assert found.config.train.epochs == 75
    assert found.open_length is None


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_timed(method: str, small_data: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trial, "LONGEST_USUAL_RUN", 0.0)
    monkeypatch.setattr(trial, "TIMED_SECONDS", 0.0)
    ready = plan(PretrainRequest(planned(small_data, method={"name": method}), fit_time=True))
    assert trial.measured_pace(ready, torch.device("cpu")).epoch > 0
