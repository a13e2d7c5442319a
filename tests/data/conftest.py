"""Small generated files for the tests of the sources; every test has a cache of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ImageMaker = Callable[..., np.ndarray]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("CARL_CACHE", str(folder))
    return folder


@pytest.fixture
def save_image() -> ImageMaker:
    """Writes a random image to a path and returns its pixels."""

    def save(path: Path, height: int = 8, width: int = 8, seed: int = 0) -> np.ndarray:
        pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        return pixels

    return save
