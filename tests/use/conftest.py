"""Runs to use: one with prototypes, one without, and one of the encoder that torchvision has too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import carl
from carl.use.encoder import TrainedModel, load_trained

QUICK = {"probe.every": 0, "log.report": False}


@pytest.fixture(scope="session")
def run(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CARL with ten prototypes on 96 images."""
    return carl.pretrain(
        small_data,
        out=tmp_path_factory.mktemp("runs") / "carl",
        backbone="test_resnet",
        epochs=2,
        batch_size=16,
        settings={"method.prototypes": 10, **QUICK},
    )


@pytest.fixture(scope="session")
def simclr_run(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A method without prototypes."""
    out = tmp_path_factory.mktemp("runs") / "simclr"
    return carl.pretrain(
        small_data, out=out, method="simclr", backbone="test_resnet", epochs=1, batch_size=32, settings=QUICK
    )


@pytest.fixture(scope="session")
def resnet_run(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "resnet"
    return carl.pretrain(small_data, out=out, backbone="resnet18", epochs=1, batch_size=32, settings=QUICK)


@pytest.fixture(scope="session")
def trained(run: Path) -> TrainedModel:
    return load_trained(run)


@pytest.fixture(scope="session")
def pixels(small_data: Path) -> np.ndarray:
    """The 96 training images."""
    with np.load(small_data) as arrays:
        return arrays["x_train"]


@pytest.fixture(scope="session")
def folder(pixels: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as files in two sub-folders, whose sorted names are in the order of the array."""
    from PIL import Image

    root = tmp_path_factory.mktemp("photos")
    for number, image in enumerate(pixels):
        path = root / f"part {number // 50}" / f"{number:03d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image).save(path)
    return root
