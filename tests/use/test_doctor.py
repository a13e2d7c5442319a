"""The doctor names what is there, what is missing, and how fast a step is."""

from __future__ import annotations

import importlib.metadata
import importlib.util

import pytest
import torch

from carl.use import doctor
from tests.conftest import Run


def test_versions_devices_and_extras_are_named(carl: Run):
    done = carl("doctor", "--no-speed")
    assert done.returncode == 0, done.stderr
    assert torch.__version__.split("+")[0] in done.stdout
    for word in ("python", "cores", "memory", "device", "cache", "onnx", "wandb"):
        assert f"\n{word} " in f"\n{done.stdout}"


def test_a_missing_extra_comes_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else found(name))
    rows = dict(doctor.examine_extras())
    assert rows["onnx"].startswith("missing; pip install 'carl-ssl[onnx]'")


def test_the_speed_of_a_step_is_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "BATCH_SIZE", 8)
    monkeypatch.setattr(doctor, "SECONDS", 0.01)
    assert doctor.measure_step(torch.device("cpu")) > 0
    monkeypatch.setattr(doctor, "measure_step", lambda device: 1000.0)
    _, words = doctor.examine_speed()
    assert "1,000 images/s" in words
    assert "0.8 min" in words


def test_every_extra_for_users_is_described():
    extras = set(importlib.metadata.metadata("carl-ssl").get_all("Provides-Extra") or ())
    assert {name for name, _ in doctor.examine_extras()} - {"cuda"} == extras - {"docs", "bench", "test", "dev"}
