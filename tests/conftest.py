"""Shared by all tests: an own cache, a small data set, and the command as a function."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

# A suite that runs in the background, or under nohup, inherits ignored signals, and so would the programs it starts. A
# signal that is handled is reset in them.
for _name in ("SIGINT", "SIGHUP"):
    _signal = getattr(signal, _name, None)  # Windows has no SIGHUP
    if _signal is not None and signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, lambda *_: None)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads or writes the user's cache."""
    os.environ["CARL_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def _float32_by_default() -> None:
    """Figures do not depend on whether this processor multiplies bfloat16. Processes that tests start do the same."""
    os.environ["CARL_PRECISION"] = "fp32"


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 training and 32 test images with labels, as .npz."""
    from carl.data.sources.shapes import make_shapes

    file = tmp_path_factory.mktemp("data") / "small.npz"
    (images, labels), (test_images, test_labels) = make_shapes(96, 0), make_shapes(32, 1)
    np.savez(file, x_train=images, y_train=labels, x_test=test_images, y_test=test_labels)
    return file


# A tiny encoder, three epochs of six steps: seconds.
SMALL = [
    "--backbone", "test_resnet", "--batch-size", "16", "--prototypes", "10", "--epochs", "3",
    "--set", "probe.images=32", "--set", "probe.train_images=64", "--set", "log.every=2",
]  # fmt: skip


@dataclass(frozen=True)
class Ended:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Ended]


@pytest.fixture
def carl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in an empty folder; in this process, which spares seconds of imports a call."""

    def run(*arguments: str | Path) -> Ended:
        from carl.cli import main

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["carl", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, *capsys.readouterr())

    return run
