"""The hash of weights: the same for a module and for its file, and of all that the encoder computes with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from carl.models.weights import weights_hash
from carl.records.weights_hash import file_hash


def test_the_hash_of_a_file_is_that_of_the_module_in_it(tmp_path: Path):
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2).half(), nn.Linear(2, 2).bfloat16())
    state = {key: value.contiguous() for key, value in module.state_dict().items()}
    save_file(state, tmp_path / "encoder.safetensors", metadata={"made": "by a test"})
    assert file_hash(tmp_path / "encoder.safetensors") == weights_hash(module)
    module[0].weight.data += 1
    assert file_hash(tmp_path / "encoder.safetensors") != weights_hash(module)


def test_the_hash_of_known_weights_never_changes():
    """Result files name their weights by it."""
    module = nn.BatchNorm1d(2)
    assert weights_hash(module) == "a7f01c1627ba1c6e109af0136ae08d882d8745ec3137a568806935cc01eb019f"


def test_the_hash_sees_weights_and_batch_norm_statistics():
    model = nn.BatchNorm1d(3)
    before = weights_hash(model)
    model.running_mean[0] += 1  # type: ignore[index]
    after = weights_hash(model)
    assert before != after
    model.weight.data[0] += 1
    assert weights_hash(model) not in (before, after)


@pytest.mark.parametrize(
    "content", [None, b"", b"\x05\0\0\0\0\0\0\0[1,2]", b"\xff" * 20, torch.zeros(9).numpy().tobytes()]
)
def test_a_missing_or_damaged_file_has_no_hash(tmp_path: Path, content: bytes | None):
    if content is not None:
        (tmp_path / "encoder.safetensors").write_bytes(content)
    assert file_hash(tmp_path / "encoder.safetensors") == ""
