"""What a stranger does first: install the package outside of the repository, and try it. Minutes: torch is large."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.documents import ROOT

FOLDER = "Scripts" if sys.platform == "win32" else "bin"


def run(command: Sequence[str | Path], folder: Path, **changed: str) -> str:
    """The output of a command that succeeds, in an environment that knows nothing of this repository."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV", "CARL"))}
    done = subprocess.run(
        command, cwd=folder, env=plain | changed, capture_output=True, text=True, encoding="utf-8", timeout=1500
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def clean_environment(folder: Path) -> Path:
    """The folder of programs of a new environment."""
    venv.create(folder, with_pip=True)
    return folder / FOLDER


@pytest.mark.slow
def test_the_wheel_installs_into_a_clean_environment_and_works_there(tmp_path: Path):
    run([sys.executable, "-m", "build", "--outdir", tmp_path / "dist", ROOT], tmp_path)
    (wheel,), (source,) = (tmp_path / "dist").glob("*.whl"), (tmp_path / "dist").glob("*.tar.gz")
    assert source.stat().st_size < 20e6
    programs, empty = clean_environment(tmp_path / "environment"), tmp_path / "empty"
    empty.mkdir()
    run([programs / "python", "-m", "pip", "install", "--quiet", wheel], empty)

    def carl(*arguments: str) -> str:
        return run([programs / "carl", *arguments], empty, CARL_CACHE=str(tmp_path / "cache"))

    where = run([programs / "python", "-c", "import carl; print(carl.__file__)"], empty)
    assert Path(where.strip()).is_relative_to(tmp_path)
    assert wheel.name.split("-")[1] in carl("--version")
    assert "\ntorch " in carl("doctor")
    assert "finished epoch 1" in carl("pretrain", "shapes", "--epochs", "1", "--out", "run")
    carl("report", "run")
    assert (empty / "run" / "report.html").stat().st_size > 100_000
    assert "2000" in carl("embed", "run", "shapes", "--split", "test", "-o", "embeddings.parquet").replace(",", "")
    assert (empty / "embeddings.parquet").is_file()


@pytest.mark.slow
def test_the_commands_of_the_container_file_run_in_a_clean_environment(tmp_path: Path):
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"^RUN (.+)$", text, re.MULTILINE)
    assert len(commands) == 2
    programs = clean_environment(tmp_path / "environment")
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    for command in commands:
        said = run(["sh", "-c", command], ROOT, PATH=path, TORCH_INDEX="", PIP_QUIET="1")
    assert said.startswith("carl, version ")
