"""How long a run takes, foretold from its own steps."""

from __future__ import annotations

import pytest

from carl.training.forecast import Forecast, Length


def after(steps: list[float], length: Length) -> Forecast:
    forecast = Forecast(length)
    for place, seconds in enumerate(steps):
        forecast.add_step(seconds)
        if place == 0:
            forecast.mark()
    return forecast


def test_the_first_step_counts_only_until_there_is_a_second():
    length = Length(epochs=2, steps_per_epoch=5, probe_every=0)
    assert Forecast(length).left(0) is None
    assert after([9.0], length).left(1) == pytest.approx(9 * 9.0)
    assert after([9.0, 2.0, 4.0], length).left(3) == pytest.approx(7 * 3.0)


def test_probes_and_what_comes_between_epochs_are_part_of_the_time_left():
    forecast = after([1.0, 1.0], Length(epochs=10, steps_per_epoch=2, probe_every=4))
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
