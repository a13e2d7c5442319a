"""What training needs of a device, on every one that torch sees here: on a machine without a GPU that is the CPU.

`make test-gpu` runs these tests and then `carl doctor --check`, which has the slow checks too. Fake tensors stand in
for CUDA in tests/methods/test_contract.py.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from carl.device import present_gpus
from carl.training import device_check
from carl.training.device_check import CHECKS, FAILED, examine_devices, outcome, present_devices
from carl.use import doctor
from tests.conftest import Run

SLOW = {"compile", "processes"}  # half a minute each on one core
DEVICES = pytest.mark.parametrize("device", present_devices(), ids=str)


@DEVICES
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in CHECKS]
)
def test_a_device_passes(name: str, device: torch.device, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "SECONDS", 0.1)
    monkeypatch.setattr(doctor, "BATCH_SIZE", 16)
    passed, words = outcome(CHECKS[name], device)
    assert passed, words


def test_without_a_gpu_the_summary_says_so_and_a_failure_is_the_exit_code(carl: Run, monkeypatch: pytest.MonkeyPatch):
    def fails(device: torch.device) -> str:
        raise device_check.Failed("7 is not 8")

    monkeypatch.setattr(device_check, "present_gpus", list)
    monkeypatch.setattr(device_check, "CHECKS", {"views": lambda device: "all equal", "sums": fails})
    done = carl("doctor", "--check")
    assert done.returncode == 1
    assert "the CPU alone: torch sees no GPU here" in done.stdout
    assert "\ncpu views      ok: all equal\n" in done.stdout
    assert f"\ncpu sums       {FAILED}: 7 is not 8\n" in done.stdout
    assert "1 of 2 checks passed" in done.stdout


def test_a_gpu_is_checked_in_the_place_of_the_cpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device_check, "present_gpus", lambda: ["cuda", "xpu"])
    monkeypatch.setattr(device_check, "CHECKS", {"views": lambda device: f"on {device}"})
    rows = dict(examine_devices())
    assert rows["cuda views"] == "ok: on cuda"
    assert rows["xpu views"] == "ok: on xpu"
    assert "checked" not in rows


def test_an_error_of_any_kind_is_a_failure_with_its_name():
    def breaks(device: torch.device) -> str:
        raise NotImplementedError("aten::_foo is not there\nand more")

    assert outcome(breaks, torch.device("cpu")) == (False, f"{FAILED}: NotImplementedError: aten::_foo is not there")


@DEVICES
def test_views_that_differ_are_noticed(device: torch.device, monkeypatch: pytest.MonkeyPatch):
    made, calls = device_check.views_on, []

    def off(device: torch.device, *arguments: object) -> tuple[list[Tensor], Tensor, Tensor]:
        calls.append(device)
        views, rows, labels = made(device)
        return ([view + 0.1 for view in views] if len(calls) == 1 else views), rows, labels

    monkeypatch.setattr(device_check, "views_on", off)
    passed, words = outcome(CHECKS["views"], device)
    assert not passed
    assert "differs from the CPU's by 0.025" in words


@DEVICES
def test_weights_that_a_resumption_changes_are_noticed(device: torch.device, monkeypatch: pytest.MonkeyPatch):
    restore = device_check.Saver.restore

    def almost(saver: device_check.Saver, checkpoint: object) -> None:
        restore(saver, checkpoint)
        with torch.no_grad():
            next(saver.learner.method.parameters()).mul_(1.001)

    monkeypatch.setattr(device_check.Saver, "restore", almost)
    passed, words = outcome(CHECKS["resume"], device)
    assert not passed
    assert "other weights than one that was not interrupted" in words


def test_kinds_of_gpu_are_those_that_torch_sees(monkeypatch: pytest.MonkeyPatch):
    for kind in ("cuda", "mps", "xpu"):
        monkeypatch.setattr(getattr(torch, kind), "is_available", lambda kind=kind: kind != "mps")
    assert present_gpus() == ["cuda", "xpu"]
