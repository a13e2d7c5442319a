"""What a person sees: one line per epoch in logs, and a display that fits terminals of any usual width."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console as RichConsole

from carl.training.console import LONG_EPOCH, Console, Moment, Probed
from carl.training.probe import ProbeResult
from tests.conftest import SMALL, Run

MOMENT = Moment(1234, 15_000, 17, 200, 4.1234567, 135.2, 5_880.0, {"loss": 4.1234567, "kl": 0.02, "used": 59.0})
PROBED = Probed(16, "kNN probe 26.8%", "1000 images choose 89 of 128 prototypes  views agree 15%  RankMe 95")


def test_a_line_has_epoch_loss_quality_speed_and_time_left_within_eighty_columns(capsys: pytest.CaptureFixture[str]):
    console = Console()
    console.show_probe(PROBED)
    console.show_epoch(MOMENT)
    (line,) = capsys.readouterr().out.splitlines()
    assert line == "epoch 17/200  loss 4.123  kNN probe 26.8% (epoch 16)  135 images/s  1h38m left"
    assert len(line) <= 80


def test_what_a_figure_means_is_said_once_and_not_in_the_display(capsys: pytest.CaptureFixture[str]):
    console = Console()
    console.show_start(Probed(0, "RankMe 63", "", "more is better"))
    console.show_epoch(MOMENT)
    start, epoch = capsys.readouterr().out.splitlines()
    assert start == "before training: RankMe 63 (more is better)"
    assert "RankMe 63 (epoch 0)" in epoch


def test_details_show_training_and_probe_in_lines_of_their_own(capsys: pytest.CaptureFixture[str]):
    console = Console(details=True)
    console.show_probe(Probed(17, PROBED.quality, PROBED.details))
    console.show_epoch(MOMENT)
    epoch, training, probe = capsys.readouterr().out.splitlines()
    assert "used" not in epoch
    assert training == "  training: loss 4.123  kl 0.02  used 59"
    assert probe == f"  probe: {PROBED.details}"


def test_within_an_epoch_a_log_has_a_line_only_if_the_epoch_is_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    now = [0.0]
    monkeypatch.setattr("carl.training.console.time.monotonic", lambda: now[0])
    console = Console()
    for seconds in (0.0, LONG_EPOCH - 1, LONG_EPOCH + 1, LONG_EPOCH + 2):
        now[0] = seconds
        console.show_step(MOMENT)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("epoch 17/200 at 45%  loss 4.123")


def drawn(console: Console, width: int) -> list[str]:
    """The lines of the live display on a terminal of this width."""
    screen = RichConsole(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    with screen.capture() as capture:
        screen.print(console.display(width))
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_display_fits_the_terminal(width: int):
    console = Console(details=True)
    console.show_probe(PROBED)
    console.show_step(MOMENT)
    lines = drawn(console, width)
    assert len(lines) == 4
    assert all(len(line) <= width for line in lines)
    assert lines[0].startswith("epoch 17/200 ")
    if width >= 80:
        assert re.search(r"step 1234/15000 0s elapsed, 1h38m left", lines[0])
        assert "loss 4.123  kNN probe 26.8% (epoch 16)  135 images/s" in lines[1]


def test_the_clock_runs_before_the_first_step_ends_and_between_steps(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr("carl.training.console.time.monotonic", lambda: now[0])
    console = Console()
    assert drawn(console, 80) == []
    console.show_doing("measuring the encoder before training")
    now[0] += 5
    assert drawn(console, 80) == ["measuring the encoder before training ... 5s elapsed"]
    console.show_step(Moment(0, 15_000, 1, 200))
    now[0] += 7
    assert "12s elapsed, timing the first steps" in drawn(console, 80)[0]
    console.show_step(MOMENT)
    now[0] += 60
    assert "1m12s elapsed, 1h37m left" in drawn(console, 80)[0]


def test_quality_is_accuracy_where_there_are_labels_and_otherwise_the_verdict():
    assert ProbeResult(None, 5.0, 0.3, 22.5, []).quality == "kNN probe 22.5%"
    assert ProbeResult(None, 5.0, 0.3, None, []).quality == "probe healthy, RankMe 5"
    assert ProbeResult(None, 5.0, 0.3, None, []).start == "RankMe 5"
    assert ProbeResult(None, 5.0, 0.3, None, []).start_explained.startswith("how many directions")
    assert ProbeResult(None, 5.0, 0.3, 22.5, []).start_explained == ""
    among = ProbeResult(None, 5.0, 0.3, None, [], knn_among=60.0, shared=np.array([5, 0, 5, 0, 5, 0]))
    assert among.quality == among.start == "kNN among the training images 60.0%"
    assert "neighbour stability 50.0%" in among.details
    assert ProbeResult(None, 5.0, 0.3, 22.5, []).details.startswith("kNN (online) 22.5%")


def test_a_log_says_the_time_first_and_has_one_line_per_epoch(small_data: Path, carl: Run):
    done = carl("pretrain", small_data, *SMALL, "--set", "log.report=false", "--out", "run")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    epochs = [line for line in lines if line.startswith("epoch ")]
    assert [line.split("  ")[0] for line in epochs] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert all(re.search(r"  loss \S+  kNN probe [\d.]+%  [\d.e+]+ images/s", line) for line in epochs)
    assert not any(word in line for line in epochs for word in ("used", "prototypes", "entropy", "lr "))
    (time,) = [place for place, line in enumerate(lines) if line.startswith("3 epochs will take about ")]
    assert time < lines.index(epochs[0])
