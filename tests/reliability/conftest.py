"""Shared by the tests of reliability: a trained run, and the command in any folder."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import carl as package
from tests.conftest import Ended

QUICK = {"method.prototypes": 10, "probe.every": 0, "log.report": False}


def call(folder: Path, *arguments: str | Path) -> Ended:
    """The `carl` command in `folder`, in this process."""
    from carl.cli import main

    before, words = Path.cwd(), sys.argv
    out, error = io.StringIO(), io.StringIO()
    code: object = None
    try:
        os.chdir(folder)
        sys.argv = ["carl", *map(str, arguments)]
        with redirect_stdout(out), redirect_stderr(error):
            main()
    except SystemExit as ended:
        code = ended.code
    finally:
        os.chdir(before)
        sys.argv = words
    assert isinstance(code, int)
    return Ended(code, out.getvalue(), error.getvalue())


def assert_refused(done: Ended, words: Sequence[str]) -> None:
    """Exit code 2, and one line that names what is wrong."""
    assert done.returncode == 2, (done.returncode, done.stdout[-500:], done.stderr[-500:])
    assert done.stderr.startswith("carl: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    for word in words:
        assert word in done.stderr, (word, done.stderr)


def listed(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of all that lies in a folder; links are not followed."""
    found = {}
    for root, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            status = os.lstat(os.path.join(root, name))
            size = status.st_size if name in names else 0
            found[os.path.relpath(os.path.join(root, name), folder)] = (size, status.st_mtime_ns)
    return found


@pytest.fixture(scope="session")
def run(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two epochs of six steps, with prototypes."""
    out = tmp_path_factory.mktemp("runs") / "good"
    return package.pretrain(
        small_data, out=out, backbone="test_resnet", epochs=2, batch_size=16, settings={**QUICK, "log.report": True}
    )
