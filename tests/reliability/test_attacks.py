"""The attacks of the soak notice what does not hold: commands that do wrong are started in their place."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reliability import attacks
from tests.reliability.attacks import (
    ATTACKS,
    STRANGER,
    Ground,
    as_stranger,
    attack,
    prepare,
    special_inputs,
    two_writers,
)

FAILS = "raise RuntimeError('a fault')"
EXECUTES = "import sys; sys.path.insert(0, ''); import pydantic"
HANGS = "import time; time.sleep(60)"
REPLACES = """
import os, shutil, sys
output = sys.argv[next(i for i, word in enumerate(sys.argv) if word in ("-o", "--out", "--sheet")) + 1]
shutil.rmtree(output) if os.path.isdir(output) else os.remove(output)
open(output, "w").write("new")
"""
MIXES = """
import sys
words = sys.argv
if "-o" in words:
    with open(words[words.index("-o") + 1], "a") as file:
        file.write("path\\n" + words[3] + "/a/000.png\\n")
"""


def ground_for(root: Path, program: str) -> Ground:
    """Files such as the attacks name, and a program that does wrong."""
    ground = Ground(root, [sys.executable, "-c", program], seconds=20)
    for folder in (ground.photos, ground.others):
        (folder / "a").mkdir(parents=True)
        (folder / "a" / "000.png").touch()
    ground.run.mkdir()
    ground.data.touch()
    return ground


@pytest.mark.parametrize("name", ATTACKS)
def test_a_traceback_is_noticed_by_every_attack(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    ground = ground_for(tmp_path, FAILS)
    found = attack(ground, name, 0, seed=0)
    assert (found.rounds, found.lost) == (1, 1)
    assert found.commands >= 1
    assert found.failures[0].startswith(f"{name} 0: ")
    assert not (tmp_path / f"{name}-0").exists()


def test_a_file_of_the_working_directory_that_is_executed_is_noticed(tmp_path: Path):
    found = attack(ground_for(tmp_path, EXECUTES), "hostile_folder", 0, seed=0)
    assert any("executed a file of the working directory" in failure for failure in found.failures)


def test_an_output_that_is_replaced_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attacks, "SPECIAL", {"pipe": attacks.SPECIAL["pipe"]})
    ground = ground_for(tmp_path, REPLACES)
    found = [failure for number in range(4) for failure in attack(ground, "special_outputs", number, 0).failures]
    assert any("it is no longer a pipe" in failure for failure in found)
    assert any("replaced without --force" in failure for failure in found)


def test_a_command_that_hangs_is_stopped_and_noticed(tmp_path: Path):
    ground = ground_for(tmp_path, HANGS)
    ground.seconds = 1
    (tmp_path / "here").mkdir()
    found = special_inputs(ground, tmp_path / "here", random.Random(0))
    assert "it hangs: stopped after 1 s" in found[0]


def test_mixed_rows_of_two_writers_are_noticed(tmp_path: Path):
    ground = ground_for(tmp_path, MIXES)

    class Draw(random.Random):
        def choice(self, sequence):
            return {"embed": "embed", "e.parquet": "e.csv", 2: 2, 0.0: 0.0, None: None}[sequence[0]]

    (tmp_path / "here").mkdir()
    found = two_writers(ground, tmp_path / "here", Draw(0))
    assert any("rows that are not those of one call" in one for one in found)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return prepare(tmp_path_factory.mktemp("ground"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_the_command_holds(name: str, real: Ground):
    for number in range(3):
        assert attack(real, name, number, seed=1).failures == []


@pytest.mark.skipif(not as_stranger(), reason="only root can become another user")
def test_a_folder_that_can_be_written_to_by_a_capability_alone_is_not_called_read_only(tmp_path: Path):
    folder = tmp_path / "closed" / "mine"
    folder.mkdir(parents=True)
    folder.parent.chmod(0o700)
    os.chown(folder, STRANGER, STRANGER)
    code = "from pathlib import Path; from carl.evaluation.result_files import check_writable as check; "
    code += f"check(Path({str(folder / 'made' / 'result.json')!r}))"
    done = subprocess.run([*as_stranger(), sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
