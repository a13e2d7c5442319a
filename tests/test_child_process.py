"""What is in the working directory is never executed by a process that the package starts."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import carl as package
from carl import files
from carl.child_process import start_python
from carl.records.run_directory import JOB_LOCK
from tests.conftest import Run

NAMES = ("pydantic", "json", "torch", "numpy", "PIL", "pickle")  # of modules that the children import


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with files named like modules; returns the file that they make when they are executed."""
    trace = tmp_path / "executed"
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"open({str(trace)!r}, 'w')\nraise SystemExit('hostile')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    return trace


def test_the_files_are_executed_by_a_python_that_is_started_otherwise(hostile: Path):
    subprocess.run([sys.executable, "-c", "import json"], stderr=subprocess.DEVNULL)
    assert hostile.exists()


@pytest.mark.parametrize("arguments", [["-c", "import pydantic"], ["-m", "json.tool", "--help"]])
def test_a_child_process_executes_nothing_of_the_working_directory(hostile: Path, arguments: list[str]):
    child = start_python(arguments, stdout=subprocess.DEVNULL)
    assert child.wait() == 0
    assert not hostile.exists()


def test_nor_does_a_process_that_the_child_starts(hostile: Path):
    code = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', 'import json']).returncode)"
    assert start_python(["-c", code]).wait() == 0
    assert not hostile.exists()


def test_comparing_methods_executes_nothing_of_the_working_directory(
    carl: Run, small_data: Path, tmp_path: Path, hostile: Path
):
    lock = tmp_path / "side" / "carl-seed-0" / JOB_LOCK
    lock.parent.mkdir(parents=True)
    with files.only_holder(lock):  # the child imports everything, finds that the run is in use, and ends
        done = carl("compare", small_data, "--methods", "carl", "--set", "train.batch_size=32", "--out", "side")
    assert done.returncode == 0, done.stderr
    assert "another process is at this run" in done.stdout
    assert not hostile.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell who lost its parent")
def test_a_child_is_told_once_that_its_parent_was_killed(tmp_path: Path):
    """Once: a second SIGTERM ends a training before it has saved. The parent has threads, which end one by one."""
    child = """
import os, signal, sys, time
from pathlib import Path
from carl import child_process
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
child_process.end_with_parent(int(sys.argv[1]), interval=0.05)
Path("ready").touch()
while not told:
    time.sleep(0.05)
time.sleep(1)
Path("told").write_text(str(len(told)))
Path("told").rename("saved")
"""
    start = f"start_python(['-c', {child!r}, str(os.getpid())])"
    threads = "[threading.Thread(target=time.sleep, args=(60,)).start() for _ in range(4)]"
    code = (
        f"import os, threading, time; from carl.child_process import start_python; {start}; {threads}; time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    try:
        wait_for(tmp_path / "ready")
    finally:
        parent.kill()
        parent.wait()
    wait_for(tmp_path / "saved")
    assert (tmp_path / "saved").read_text() == "1"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell who lost its parent")
def test_a_comparison_that_is_killed_takes_its_trainer_along_which_saves(small_data: Path, tmp_path: Path):
    values = ["--set", "train.batch_size=32", "--set", "model.backbone=test_resnet", "--set", "log.every=1"]
    command = ["compare", str(small_data), "--methods", "carl", "--epochs", "2000", "--out", "side", *values]
    parent = subprocess.Popen([sys.executable, "-m", "carl", *command], cwd=tmp_path, stdout=subprocess.DEVNULL)
    run = tmp_path / "side" / "carl-seed-0"
    try:
        wait_for(run / "checkpoint.pt")
    finally:
        parent.kill()
        parent.wait()
    with files.only_holder(run / ".lock", patience=60) as ended:
        assert ended, "the trainer goes on"
    assert "all is saved" in (tmp_path / "side" / "logs" / "carl-seed-0.txt").read_text()


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 240
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not appear"
        time.sleep(0.05)


def test_no_other_part_of_the_package_starts_a_python():
    root = Path(package.__file__).parent
    starts = re.compile(
        r"subprocess\.(Popen|run|call|check_\w+|getoutput)\(|\[sys\.executable|os\.(spawn|exec|system|popen|posix_spawn)"
        r"|\b(ProcessPoolExecutor|multiprocessing\.(Process|Pool|spawn))\b"
    )
    found = {
        path.relative_to(root).as_posix(): sorted({match[0] for match in starts.finditer(text)})
        for path in root.rglob("*.py")
        if starts.search(text := path.read_text(encoding="utf-8"))
    }
    # environment.py asks git which commit this is.
    assert found.pop("records/environment.py") == ["subprocess.run("]
    assert list(found) == ["child_process.py"], found
