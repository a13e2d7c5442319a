"""Weights and checkpoints made to fill the memory, and state dicts that are none."""

from __future__ import annotations

import collections
import io
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from carl.errors import UserError
from carl.models.state_dicts import read_weights
from carl.models.torch_files import read_torch_file
from carl.training.checkpoint import load_checkpoint
from tests.reliability.conftest import assert_refused, call
from tests.reliability.test_hostile import Calls, bounded

GIGABYTES = 4 * 10**9  # enough to be seen, little enough to harm no one who runs this without the check
BOMBS: dict[str, Any] = {
    "bytes": Calls(bytearray, GIGABYTES),
    "tensor": Calls(torch.Tensor, GIGABYTES // 4),
    "tensor of a type": Calls(torch.FloatTensor, GIGABYTES // 4),
    "storage": Calls(torch.UntypedStorage, GIGABYTES),
    "parameter": Calls(torch.nn.Parameter, Calls(torch.Tensor, GIGABYTES // 4)),
    "subclass": Calls(torch._utils._rebuild_wrapper_subclass, torch.Tensor, torch.float32, (GIGABYTES,), (1,), 0,
                      torch.strided, torch.device("cpu"), False),
}  # fmt: skip


def write(path: Path, content: object, legacy: bool) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    return path


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("name", BOMBS)
def test_weights_that_ask_for_memory_by_a_number_get_none(tmp_path: Path, name: str, legacy: bool):
    file = write(tmp_path / "a.pth", {"format": 1, "weight": BOMBS[name]}, legacy)
    assert file.stat().st_size < 10_000
    with bounded():
        with pytest.raises(UserError, match=r"holds no weights.*which weights do not need"):
            read_weights(file)
        with pytest.raises(UserError, match=r"not a checkpoint that carl wrote.*which weights do not need"):
            load_checkpoint(file)


@pytest.mark.parametrize("other", ["data.PKL", "Data.pkl", "constants.pkl", "data/x.pkl", "../data.pkl"])
def test_a_zip_with_names_that_torch_does_not_write_is_refused_unread(tmp_path: Path, other: str):
    """torch finds names whatever their case, so a look for `data.pkl` alone is not a look at what it will read."""
    stream = io.BytesIO()
    torch.save({"format": 1, "weight": Calls(bytearray, GIGABYTES // 4)}, stream)
    with zipfile.ZipFile(stream) as source, zipfile.ZipFile(tmp_path / "a.pth", "w") as changed:
        for member in source.infolist():
            changed.writestr(member.filename.replace("data.pkl", other), source.read(member))
    with bounded(), pytest.raises(UserError, match=r"holds no weights.*which torch\.save does not write"):
        read_weights(tmp_path / "a.pth")


def test_weights_that_are_compressed_are_refused_and_not_inflated(tmp_path: Path):
    plain = write(tmp_path / "plain.pth", {"weight": torch.zeros(60_000_000)}, legacy=False)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(tmp_path / "a.pth", "w", zipfile.ZIP_DEFLATED) as packed:
        for member in source.infolist():
            packed.writestr(member.filename, source.read(member))
    plain.unlink()
    assert (tmp_path / "a.pth").stat().st_size < 2**20
    with bounded(), pytest.raises(UserError, match=r"compressed \(.*which torch\.save does not do"):
        read_weights(tmp_path / "a.pth")


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickles_that_torch_did_not_write_are_refused(tmp_path: Path, protocol: int):
    (tmp_path / "a.pth").write_bytes(pickle.dumps({"a": collections.deque([1])}, protocol))
    with pytest.raises(UserError, match="holds no weights"):
        read_weights(tmp_path / "a.pth")


def test_a_pickle_that_states_a_length_beyond_reason_takes_no_memory(tmp_path: Path):
    (tmp_path / "a.pth").write_bytes(b"\x80\x04\x8e" + struct.pack("<Q", 2**34) + b"x.")
    with bounded(), pytest.raises(UserError, match="holds no weights"):
        read_weights(tmp_path / "a.pth")


@pytest.mark.parametrize("legacy", [False, True])
def test_what_torch_saves_of_models_and_optimisers_is_read(tmp_path: Path, legacy: bool):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    half = {name: value.half() for name, value in model.state_dict().items()}
    state = {
        "state_dict": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "loss": 0.5, "arch": "x",
        "parameters": list(model.parameters()), "shape": torch.Size([1, 2]), "half": half, "seen": {1, 2},
        "counts": collections.Counter("ab"), "bf16": torch.zeros(2, dtype=torch.bfloat16), "name": b"bytes",
        "type": torch.float32, "where": torch.device("cpu"),
    }  # fmt: skip
    read = read_torch_file(write(tmp_path / "a.pth", state, legacy))
    assert read.keys() == state.keys()
    assert torch.equal(read["state_dict"]["0.weight"], model[0].weight)


BAD_WEIGHTS: dict[str, Any] = {
    "numbers as names": {0: torch.zeros(3)},
    "sparse": {"conv1.weight": torch.eye(3).to_sparse()},
    "of a shape alone": {"conv1.weight": torch.zeros(3, device="meta")},
    "text": {"conv1.weight": "text"},
}


@pytest.mark.parametrize("name", BAD_WEIGHTS)
def test_state_dicts_that_are_none_are_refused(tmp_path: Path, small_data: Path, name: str):
    torch.save(BAD_WEIGHTS[name], tmp_path / "a.pth")
    arguments = ["--backbone", "test_resnet", "--batch-size", "8", "--init", "a.pth", "--out", "run"]
    assert_refused(call(tmp_path, "pretrain", small_data, *arguments), ["a.pth"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("value", "ending"), [(float("nan"), "safetensors"), (float("nan"), "pth"), (float("inf"), "pth"), (1j, "pth")]
)
def test_weights_that_are_not_finite_or_not_real_are_not_taken_to_begin_with(
    run: Path, small_data: Path, tmp_path: Path, value: complex, ending: str
):
    weights = load_file(run / "encoder.safetensors")
    first = next(key for key, tensor in weights.items() if tensor.is_floating_point())
    weights[first] = weights[first] * value
    save = save_file if ending == "safetensors" else torch.save
    save(weights, tmp_path / f"a.{ending}")
    arguments = ["--backbone", "test_resnet", "--batch-size", "8", "--init", f"a.{ending}", "--out", "run"]
    assert_refused(call(tmp_path, "pretrain", small_data, *arguments), [f"a.{ending}", first])
    assert not (tmp_path / "run").exists()


def test_a_file_of_torch_with_a_storage_shorter_than_stated_is_refused(tmp_path: Path):
    stream = io.BytesIO()
    torch.save({"a": torch.zeros(1000)}, stream)
    with zipfile.ZipFile(stream) as source, zipfile.ZipFile(tmp_path / "a.pth", "w") as cut:
        for member in source.infolist():
            content = source.read(member)
            cut.writestr(member.filename, content[:8] if "/data/" in member.filename else content)
    with pytest.raises(UserError, match="holds no weights"):
        read_weights(tmp_path / "a.pth")
