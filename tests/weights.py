"""The weights that a run left, and whether two runs left the same."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file


def weights(run: Path) -> dict[str, torch.Tensor]:
    return {**load_file(run / "encoder.safetensors"), **load_file(run / "head.safetensors")}


def assert_same_weights(first: Path, second: Path) -> None:
    a, b = weights(first), weights(second)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)
