"""Locks have one holder, end with it however it ends, and never keep anyone out for want of a lock."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from carl.files import only_holder

HOLD = """
import sys
from pathlib import Path
from carl.files import only_holder
with only_holder(Path(sys.argv[1])) as held:
    print(held, flush=True)
    sys.stdin.read()
"""


def hold_elsewhere(path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_lock_has_one_holder_and_ends_with_it_however_it_ends(tmp_path: Path, end: str):
    other = hold_elsewhere(tmp_path / "lock")
    try:
        with only_holder(tmp_path / "lock") as held:
            assert not held
    finally:
        if end == "kill":
            other.kill()
        other.communicate()
    with only_holder(tmp_path / "lock") as held:
        assert held


def test_a_patient_process_gets_the_lock_when_its_holder_lets_go(tmp_path: Path):
    holding, asked = threading.Event(), threading.Event()

    def hold() -> None:
        with only_holder(tmp_path / "lock"):
            holding.set()
            asked.wait()
            time.sleep(0.1)

    thread = threading.Thread(target=hold)  # a lock belongs to an open file, so a thread stands for a process
    thread.start()
    holding.wait()
    asked.set()
    with only_holder(tmp_path / "lock", patience=30.0) as held:
        assert held
    thread.join()


def test_the_lock_file_stays_the_same_so_that_all_who_have_it_open_wait_for_each_other(tmp_path: Path):
    (tmp_path / "lock").touch()
    before = (tmp_path / "lock").stat().st_ino
    with only_holder(tmp_path / "lock"):
        pass
    with only_holder(tmp_path / "lock") as held:
        assert held
    assert (tmp_path / "lock").stat().st_ino == before


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_disk_that_cannot_lock_lets_everyone_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int):
    def refuse(file: int, operation: int) -> None:
        raise OSError(number, "no locks here")

    monkeypatch.setattr("fcntl.flock", refuse)
    with only_holder(tmp_path / "lock") as first, only_holder(tmp_path / "lock") as second:
        assert (first, second) == (True, True)


def test_a_lock_file_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "lock", tmp_path / "folder"):
        with pytest.raises(OSError, match=r"exists|directory") as error, only_holder(path):
            pass
        assert str(error.value.filename).startswith(str(tmp_path))


def test_an_error_of_the_work_passes_through_and_releases_the_lock(tmp_path: Path):
    with pytest.raises(OSError, match="no space"), only_holder(tmp_path / "lock"):
        raise OSError(errno.ENOSPC, "no space")
    with only_holder(tmp_path / "lock") as held:
        assert held
