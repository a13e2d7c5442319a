"""A feature is one file and one line: toys from outside of the package work through the command line itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from carl.data.open import SOURCES
from carl.evaluation.protocols import PROTOCOLS
from carl.methods import METHODS
from carl.models.pretrained import KINDS
from carl.quality import CHECKS
from carl.use.export import FORMATS
from carl.views.operations import OPERATIONS
from tests.conftest import Run
from tests.extensions.toy_check import TOY_CHECK
from tests.extensions.toy_encoder import TOY_ENCODER
from tests.extensions.toy_format import TOY_FORMAT
from tests.extensions.toy_method import ToyMethod
from tests.extensions.toy_protocol import TOY_PROTOCOL
from tests.extensions.toy_source import TOY_SOURCE
from tests.extensions.toy_view_operation import UpsideDown

SHORT = ["--backbone", "test_resnet", "--epochs", "1", "--batch-size", "16", "--set", "log.report=false"]


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "toy", ToyMethod)
    monkeypatch.setitem(PROTOCOLS, "toy", TOY_PROTOCOL)
    monkeypatch.setitem(OPERATIONS, "upside_down", UpsideDown)
    monkeypatch.setitem(SOURCES, "toy", TOY_SOURCE)
    monkeypatch.setitem(FORMATS, "toy", TOY_FORMAT)
    monkeypatch.setitem(CHECKS, "toy", TOY_CHECK)
    monkeypatch.setitem(KINDS, "toy:SEED", TOY_ENCODER)


def train(carl: Run, data: str | Path, *options: str) -> None:
    done = carl("pretrain", data, *SHORT, "--out", "run", *options)
    assert done.returncode == 0, done.stderr


def test_a_method(carl: Run, small_data: Path, tmp_path: Path):
    train(carl, small_data, "--method", "toy", "--set", "method.size=5")
    config = (tmp_path / "run" / "config.toml").read_text()
    assert 'name = "toy"' in config
    assert "size = 5" in config
    assert carl("pretrain", small_data, "--method", "toi").stderr.endswith("did you mean 'toy'?\n")


def test_a_protocol(carl: Run, small_data: Path, tmp_path: Path):
    train(carl, small_data, "--prototypes", "10")
    done = carl("eval", "run", "--protocol", "toy")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("toy spread on small.npz, offline: a toy")
    result = json.loads((tmp_path / "run" / "results" / "toy-small.json").read_text())
    assert result["accuracy"]["trained"]["spread"] > 0


def test_a_view_operation(carl: Run, small_data: Path, tmp_path: Path):
    weights = []
    for value in ("0.0", "1.0"):
        done = carl(
            "pretrain", small_data, *SHORT, "--prototypes", "10", "--out", value,
            "--set", f"views.upside_down={value}",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        weights.append((tmp_path / value / "encoder.safetensors").read_bytes())
    assert weights[0] != weights[1]


def test_a_data_source(carl: Run, tmp_path: Path):
    assert "Squares of 48 shades" in carl("data", "list").stdout
    train(carl, "toy", "--prototypes", "10")
    done = carl("embed", "run", "toy", "-o", "e.csv")
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "e.csv").read_text().splitlines()) == 1 + 2 * 48


def test_an_export_format(carl: Run, small_data: Path, tmp_path: Path):
    train(carl, small_data, "--prototypes", "10")
    assert "checked: loaded again" in carl("export", "run", "--to", "toy").stdout
    with np.load(tmp_path / "run" / "export" / "encoder.npz") as arrays:
        assert "conv1.weight" in arrays.files or len(arrays.files) > 10


def test_a_kind_of_encoder(carl: Run, small_data: Path, tmp_path: Path):
    for seed in (3, 4):
        done = carl("embed", f"toy:{seed}", small_data, "-o", f"{seed}.npy")
        assert done.returncode == 0, done.stderr
    found = [np.load(tmp_path / f"{seed}.npy") for seed in (3, 4)]
    assert np.abs(found[0] - found[1]).max() > 1e-3
    train(carl, small_data, "--prototypes", "10", "--init", "toy:3")
    assert 'init = "toy:3"' in (tmp_path / "run" / "config.toml").read_text()


def test_all_of_them_together(carl: Run):
    train(carl, "toy", "--method", "toy", "--set", "views.upside_down=0.5")
    assert carl("eval", "run", "--protocol", "toy").returncode == 0
    assert carl("export", "run", "--to", "toy").returncode == 0


def test_a_quality_check(carl: Run, small_data: Path, tmp_path: Path):
    train(carl, small_data, "--prototypes", "10")
    with np.load(small_data) as arrays:
        pixels = arrays["x_train"][:8].copy()
    pixels[:, 0, 0] = 0
    pixels[[1, 5], 0, 0] = (255, 0, 0)
    np.save(tmp_path / "images.npy", pixels)
    done = carl("report", "run", "images.npy", "-o", "page.html")
    assert done.returncode == 0, done.stderr
    assert "2 red corner" in done.stdout
    assert "The first pixel is red." in (tmp_path / "page.html").read_text(encoding="utf-8")
