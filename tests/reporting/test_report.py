"""The report page: whole from files alone, honest about the end of a run, safe with any text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from carl.reporting.curves import curve
from carl.reporting.report import write_report

CONFIG = """
[data]
source = "<script>alert(1)</script>"
[model]
backbone = "resnet18"
[method]
name = "carl"
[train]
epochs = 2
batch_size = 16
"""
HEALTH = {"used": 3, "prototypes": 4, "dead": 1, "duplicates": 0, "agreement": 0.5, "rank_me": 7.0}
PROBE = {"kind": "probe", "epoch": 0, **HEALTH}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text(CONFIG)
    (tmp_path / "environment.json").write_text(
        json.dumps({"command": ["carl", "pretrain", "<b>x</b>"], "python": "3.11"})
    )
    last = {**PROBE, "epoch": 2, "verdict": "partly collapsed", "warnings": ["<i>mind</i> this"]}
    step = {"kind": "step", "epoch": 1.0, "loss": 1.5}
    records = [PROBE, step, last, {"kind": "event", "event": "finished"}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    np.savez(
        tmp_path / "gallery.npz",
        prototype=np.array([0, 0, 2]), probability=np.array([0.9, 0.4, 0.7]), prototypes=np.int64(4),
        thumbnails=np.zeros((3, 8, 8, 3), np.uint8), views=np.zeros((2, 3, 8, 8, 3), np.uint8),
        labels=np.array([0, 1, 1]), class_names=np.array(["<u>cat</u>", "dog"]),
    )  # fmt: skip
    return tmp_path


def test_text_from_data_is_shown_as_text(run: Path):
    page = write_report(run).read_text()
    for raw in ("<script>alert", "<b>x</b>", "<i>mind</i>", "<u>cat</u>"):
        assert raw not in page
    assert "&lt;script&gt;alert" in page
    assert "&lt;u&gt;cat&lt;/u&gt; 50%" in page


def test_the_page_needs_no_network_and_tells_verdict_prototypes_and_views(run: Path):
    page = write_report(run).read_text()
    assert "http://" not in page
    assert "https://" not in page
    assert "partly collapsed" in page
    assert page.count('class="strip"') == 2  # of four prototypes two have images
    assert "Grid of augmented views" in page


def test_a_run_that_did_not_finish_is_said_to_have_stopped_early(run: Path):
    lines = (run / "metrics.jsonl").read_text().splitlines()[:-1]
    (run / "metrics.jsonl").write_text("\n".join(lines) + '\n{"kind": "st')  # killed while it wrote
    (run / "gallery.npz").unlink()
    page = write_report(run, run / "elsewhere.html").read_text()
    assert "stopped early" in page
    assert "No gallery yet" in page


def test_reports_import_no_torch():
    code = "import sys, carl.reporting.report; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_curve_of_one_value_is_drawn():
    chart = curve("Loss", [(1.0, 2.0)])
    assert "<svg" in str(chart["svg"])
    assert chart["last"] == "2"
