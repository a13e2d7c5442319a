"""metrics.jsonl: what a resumed run keeps, and what a report shows, of lines by whatever hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from carl.records.metrics import is_record, read_records

STEP: dict[str, Any] = {"kind": "step", "step": 5, "epoch": 0.5, "loss": 1.5}


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, True),
        ({"loss": math.nan}, True),  # a run that goes wrong writes it
        ({"kind": "probe", "verdict": "healthy", "warnings": ["a"]}, True),
        ({"kind": "event", "event": "finished", "detail": {"any": "thing"}}, True),
        ({"kind": 3}, False),
        ({"step": 1.5}, False),
        ({"epoch": math.inf}, False),
        ({"loss": "low"}, False),
        ({"loss": 2**70}, False),
        ({"verdict": 3}, False),
        ({"warnings": "a"}, False),
        ({"findings": [1]}, False),
    ],
)
def test_a_resumed_run_keeps_the_lines_that_a_run_writes(change: dict[str, Any], kept: bool):
    assert is_record(STEP | change) == kept


def test_a_report_shows_what_can_be_shown_of_each_line(tmp_path: Path):
    lines = [
        STEP | {"lr": math.nan, "speed": 1e301, "name": "x", "flag": True, "warnings": [1]},
        STEP | {"epoch": None},
        STEP | {"kind": 3},
        {"kind": "event", "event": "finished", "seconds": 3.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "st')
    assert read_records(tmp_path / "metrics.jsonl") == [STEP, lines[-1]]
    assert read_records(tmp_path / "none.jsonl") == []
