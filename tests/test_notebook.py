"""The notebook runs from top to bottom, on a few small images: commands as commands, the rest as Python."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

from tests.conftest import Run
from tests.documents import ROOT

NOTEBOOK = ROOT / "examples" / "own_photos.ipynb"
SMALLER = [  # what makes a cell quick; each must be there
    ("pixels[:300]", "pixels[:24]"),
    ("photos -o groups.parquet", "photos -o groups.parquet --groups 3"),
    ("--epochs 10", "--epochs 1 --batch-size 8 --image-size 64"),
]


def code_cells() -> list[str]:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_holds_no_output_of_anyone():
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], len({cell["id"] for cell in notebook["cells"]})) == (4, len(notebook["cells"]))
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in notebook["cells"])


def test_the_package_that_the_notebook_installs_has_the_extras_it_names():
    (installs,) = [cell for cell in code_cells() if cell.startswith("%pip install")]
    name, extra = re.findall(r"'([\w-]+)\[(\w+)\]'", installs)[0]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert name == project["name"]
    assert extra in project["optional-dependencies"]


@pytest.mark.slow
def test_the_cells_run_one_after_the_other(carl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    source = "\0".join(code_cells())
    for old, new in SMALLER:
        assert old in source
        source = source.replace(old, new)
    names: dict[str, Any] = {}
    for cell in source.split("\0"):
        if cell.startswith("!"):
            command = re.sub(r"\{(.+)\}", lambda found: str(eval(found[1], names)), cell.removeprefix("!"))
            program, *arguments = shlex.split(command)
            assert program == "carl"
            done = carl(*arguments)
            assert done.returncode == 0, f"{cell}: {done.stderr}"
        elif not cell.startswith("%pip"):
            exec(compile(cell, str(NOTEBOOK), "exec"), names)
    made = ("embeddings.parquet", "groups.html", "look.html", "found.html", "runs/adapted/report.html")
    assert [name for name in made if not (tmp_path / name).is_file()] == []
    assert names["features"].shape == (8, 1280)
