"""The soak's own parts: what it counts is what happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.reliability import soak
from tests.reliability.fuzzing import checkpoint_seed
from tests.reliability.killing import kind_of, lost_checkpoint, spread_over_kinds
from tests.reliability.soak import failures_of, write_results

MOMENTS = [
    *["before packing", "after packing"] * 90,
    *["before stepping", "after stepping", "before stepping, noted", "after stepping, noted"] * 3,
    "before saving checkpoint.pt",
    "after saving checkpoint.pt",
    *["before stepping", "after stepping"] * 3,
    "before evaluating, features",
    "after evaluating, features",
]


def test_kills_are_shared_out_equally_over_the_kinds_of_moments():
    numbers = spread_over_kinds(MOMENTS, 12, seed=0)
    kinds = Counter(kind_of(MOMENTS[number - 1]) for number in numbers)
    assert kinds == {"packing": 3, "saving": 3, "stepping": 3, "evaluating": 3}
    assert len(set(numbers)) == 3 + 2 + 3 + 2  # none twice while there are others of its kind


def test_a_checkpoint_that_was_saved_and_is_not_there_is_called_lost(tmp_path: Path):
    saved = MOMENTS.index("after saving checkpoint.pt") + 1
    assert lost_checkpoint(MOMENTS, saved - 1, tmp_path) is None  # none was there yet
    assert "does not exist" in str(lost_checkpoint(MOMENTS, saved, tmp_path))
    (tmp_path / "checkpoint.pt").write_bytes(checkpoint_seed())  # of step 3
    assert lost_checkpoint(MOMENTS, len(MOMENTS), tmp_path) == ""
    later = [*MOMENTS, "after saving checkpoint.pt"]
    assert "one of step 6 was saved" in str(lost_checkpoint(later, len(later), tmp_path))


WATCHED = """
from pathlib import Path
import pytest
from tests.reliability.conftest import call

def test_inside(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    assert call(tmp_path, "pretrian").returncode == 2

def test_outside(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path.parents[1])
    (tmp_path / "link" / "file.txt").write_text("x")
    (tmp_path / ".." / "folder").mkdir()

def test_traceback(tmp_path, monkeypatch):
    monkeypatch.setattr("carl.cli.cli.main", lambda **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        call(tmp_path, "doctor")

def test_failing():
    assert 1 == 2
"""


def test_the_witness_counts_commands_tracebacks_and_files_outside_of_the_target(tmp_path: Path):
    (tmp_path / "test_watched.py").write_text(WATCHED)
    figures = tmp_path / "figures.json"
    options = ["-p", "tests.reliability.witness", "--witness", figures, "-p", "no:cacheprovider", "--noconftest"]
    command = [sys.executable, "-m", "pytest", *options, "--basetemp", tmp_path / "base", tmp_path / "test_watched.py"]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[2])
    assert figures.is_file(), done.stdout + done.stderr
    (tally,) = json.loads(figures.read_text()).values()
    assert (tally["tests"], tally["commands"], tally["tracebacks"]) == (4, 2, 1)
    assert [line.split(" ")[0] for line in tally["outside"]] == ["open", "os.mkdir"]
    assert str(tmp_path / "file.txt") in tally["outside"][0]
    assert len(tally["failures"]) == 1
    assert "test_failing" in tally["failures"][0]
    assert tally["writes"] >= 4


def test_a_soak_that_was_stopped_writes_what_it_found(tmp_path: Path):
    found = {
        "command": "x", "machine": "m", "torch": "t", "made": "d", "seconds": 1.0, "stopped": True, "fuzzer": "f",
        "inputs": {"test_hostile": {"tests": 9, "failures": [], "commands": 8, "tracebacks": 0, "writes": 7,
                                    "outside": ["open /etc/x in y"]}},
        "attacks": {"two_writers": {"rounds": 5, "commands": 12, "lost": 1, "failures": ["rows", "code"]}},
        "home": [], "broken": [], "disk": {"tried": False, "reason": "it was not reached"}, "fuzz": {}, "guided": {},
        "kills": {"kills": 3, "moments": 9, "of": {"saving": 5}, "at": {"saving": 3}, "checkpoints": 2,
                  "lost": [], "failures": ["before saving: weights"]},
    }  # fmt: skip
    write_results(found, tmp_path)
    page = (tmp_path / "reliability.md").read_text()
    for line in (
        "| kill -9 at a random moment, then resume: the same bits | 3 | 2 |",
        "one may be killed: a whole result | 5 | 4 |",
        "the commands in them: 12.",
        "| commands in these tests: no traceback | 8 | 8 |",
        "| files made, changed or removed in these tests: none outside of the target | 7 | 6 |",
        "3 saving (of 5)",
        "stopped before its end",
        "- `before saving: weights`",
    ):
        assert line in page
    assert len(failures_of(found)) == 4
    assert json.loads((tmp_path / "reliability.json").read_text()) == found


def test_a_part_of_the_soak_that_fails_ends_none_of_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> None:
        raise ValueError("a fault of the soak")

    done: list[str] = []
    monkeypatch.setattr(soak, "try_inputs", broken)
    for name in ("attack_often", "kill_often", "fill_disk", "fuzz_all"):
        monkeypatch.setattr(soak, name, lambda *_, name=name: done.append(name))
    monkeypatch.setattr(sys, "argv", ["soak", "--guided-seconds", "0", "--out", str(tmp_path)])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit, match="1"):
        soak.main()
    assert done == ["attack_often", "kill_often", "fill_disk", "fuzz_all"]
    assert "- `inputs: " in (tmp_path / "reliability.md").read_text()
