"""What the demo promises, in full: minutes long."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Run


@pytest.mark.slow
def test_the_demo_learns_20_points_more_than_random_weights_and_is_healthy(carl: Run, tmp_path: Path):
    done = carl("pretrain", "shapes", "--out", "demo", "--resume", "auto")
    assert done.returncode == 0, done.stderr
    assert "prototypes: healthy" in done.stdout
    assert carl("eval", "demo").returncode == 0
    accuracy = json.loads((tmp_path / "demo" / "results" / "knn-shapes.json").read_text())["accuracy"]
    assert accuracy["trained"]["20"] >= accuracy["random"]["20"] + 20


@pytest.mark.slow
def test_without_the_prior_the_demo_collapses_and_says_so(carl: Run):
    done = carl("pretrain", "shapes", "--prior-start", "0", "--prior-end", "0", "--epochs", "2")
    assert done.returncode == 0, done.stderr
    assert "warning: collapsed: all images go to" in done.stdout
    assert "raise --prior-start (now 0) or lower the learning rate" in done.stdout
