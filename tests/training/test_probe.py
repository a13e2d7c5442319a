"""What the probe says on the console."""

from __future__ import annotations

from carl.training.probe import ProbeResult


def test_the_accuracy_on_the_console_says_that_it_is_online():
    assert ProbeResult(None, 5.0, 0.3, 22.5, []).summary() == "kNN probe (online) 22.5%  RankMe 5"
