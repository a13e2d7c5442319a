"""How long a run takes, foretold from its own steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch

from carl.config import resolve
from carl.methods.carl import CarlOptions
from carl.training.console import Console, roughly
from carl.training.forecast import THE_REST, WILL_TAKE, Forecast, Length, whole_run_foretold
from carl.training.journal import Journal
from carl.training.learner import Learner
from carl.training.progress import Progress


def after(steps: list[float], length: Length) -> Forecast:
    forecast = Forecast(length)
    for place, seconds in enumerate(steps):
        forecast.add_step(seconds)
        if place == 0:
            forecast.mark()
    return forecast


def test_nothing_is_foretold_before_two_steps_after_the_first():
    length = Length(epochs=2, steps_per_epoch=5, probe_every=0)
    assert Forecast(length).left(0) is None
    assert after([42.0], length).left(1) is None
    assert after([42.0, 2.0], length).left(2) is None
    assert after([42.0, 2.0, 4.0], length).left(3) == pytest.approx(7 * 3.0)


def test_a_slow_first_step_of_a_resumed_run_does_not_set_what_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    now = [0.0]
    monkeypatch.setattr("carl.training.progress.time.monotonic", lambda: now[0])
    learner = SimpleNamespace(
        config=resolve([{"data": {"source": "shapes"}, "train": {"epochs": 4}}], CarlOptions),
        device=torch.device("cpu"),
        steps_done=20,
        total_steps=40,
    )
    progress = Progress(cast("Learner", learner), 10, cast("Journal", SimpleNamespace(of_kind=lambda _: [])), Console())
    progress.begin_epoch()
    for seconds in (42.6, 8.0, 8.0):
        assert "will take about" not in capsys.readouterr().out
        now[0] += seconds
        learner.steps_done += 1
        progress.add({"loss": torch.tensor(1.0)})
    assert "the rest will take about 2m16s (32 images/s)" in capsys.readouterr().out  # 17 steps


def test_probes_and_what_comes_between_epochs_are_part_of_the_time_left():
    forecast = after([1.0, 1.0, 1.0], Length(epochs=10, steps_per_epoch=2, probe_every=4))
    forecast.add_probe(50.0)
    forecast.add_pause(3.0)
    assert forecast.left(2) == pytest.approx(18 * 1.0 + 9 * 3.0 + 3 * 50.0)  # probes after epochs 4, 8 and 10
    assert forecast.left(20) == 0


@pytest.mark.parametrize(
    ("epochs", "every", "epoch", "probes"),
    [(10, 4, 0, 3), (10, 4, 4, 2), (10, 4, 8, 1), (10, 4, 10, 0), (8, 4, 0, 2), (5, 1, 2.5, 3), (5, 0, 0, 0)],
)
def test_probes_are_due_every_so_many_epochs_and_at_the_end(epochs: int, every: int, epoch: float, probes: int):
    assert Length(epochs, 1, every).probes_after(epoch) == probes


def test_the_pace_follows_a_machine_that_becomes_slower():
    forecast = after([1.0, 1.0], Length(1000, 100, 0))
    for _ in range(40):
        for _ in range(10):
            forecast.add_step(5.0)
        forecast.mark()
    assert forecast.pace == pytest.approx(5.0)


@pytest.mark.parametrize(("epochs", "shorter"), [(200, 20), (100, 20), (75, 10), (30, 5), (20, None), (8, None)])
def test_a_shorter_run_is_a_fifth_or_less(epochs: int, shorter: int | None):
    forecast = after([1.0, 2.0], Length(epochs, 3, max(1, epochs // 20)))
    found = forecast.of_shorter_run()
    assert (None if found is None else found[0]) == shorter
    if found is not None:
        assert found[1] == pytest.approx(found[0] * 3 * 2.0)


def test_the_line_that_says_how_long_a_run_takes_can_be_read_again():
    for seconds in (5.0, 59.0, 95.0, 599.0, 3600.0, 5_040.0):
        line = f"8 epochs {WILL_TAKE} {roughly(seconds)} (64 images/s); --epochs 5 would take 12s"
        assert whole_run_foretold(line) == pytest.approx(seconds, abs=30)
    assert whole_run_foretold(f"{THE_REST} {WILL_TAKE} 1m40s (64 images/s)") is None
    assert whole_run_foretold("epoch 1/2  loss 1.2  45s left") is None
