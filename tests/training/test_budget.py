"""How long a run is and how large its batches are if the user does not say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from carl.config import Layer
from carl.data.facts import DataFacts
from carl.device import hardware
from carl.errors import UserError
from carl.methods.run_config import read_config
from carl.records.run_directory import RunDirectory
from carl.training.budget import CHOICES, usual_batch_size, usual_epochs
from carl.training.plan import PretrainRequest, completed, plan


def facts(images: int, size: int = 96, name: str = "photos") -> DataFacts:
    return DataFacts(name, images, 3, size, 0)


@pytest.mark.parametrize(
    ("images", "size", "epochs"),
    [(200, 96, 200), (768, 96, 75), (3_000, 96, 20), (10_000, 96, 10), (10**6, 224, 10), (4_000, 32, 150)],
)
def test_on_a_cpu_more_pixels_get_fewer_epochs(images: int, size: int, epochs: int):
    assert usual_epochs(facts(images, size), "cpu") == epochs
    assert usual_epochs(facts(images, size), "cuda") == 200


def test_the_papers_data_sets_keep_the_papers_epochs_with_any_method_and_device():
    for method in ("carl", "simclr"):
        asked = {"data": {"source": "cifar10"}, "method": {"name": method, "preset": "paper"}}
        config = completed({**asked, "train": {"device": "cpu"}}, facts(50_000, 32, "cifar10"))
        assert (config.train.epochs, config.train.batch_size) == (200, 256)


def test_what_the_user_or_the_preset_says_wins():
    asked = {"data": {"source": "photos"}, "train": {"epochs": 3, "batch_size": 7, "device": "cpu"}}
    assert completed(asked, facts(5_000)).train.epochs == 3
    assert completed(asked, facts(5_000)).train.batch_size == 7
    shapes = completed({"data": {"source": "shapes"}}, facts(10_000, 24, "shapes")).train
    assert (shapes.epochs, shapes.batch_size) == (8, 128)


def test_the_default_preset_follows_the_length_of_the_run():
    asked: Layer = {"data": {"source": "cifar10"}}
    presets = {}
    for epochs in (5, 100):
        config = completed({**asked, "train": {"epochs": epochs}}, facts(50_000, 32, "cifar10"))
        presets[epochs] = config.method.preset
    assert presets == {5: "robust", 100: "paper"}
    assert completed(asked, facts(50_000, 32, "cifar10")).method.preset == "paper"  # 200 epochs


def test_all_methods_get_the_same_length_on_the_same_data():
    lengths = {
        (config.train.epochs, config.train.batch_size)
        for method in ("carl", "simclr", "byol", "swav")
        for config in [completed({"data": {"source": "x"}, "method": {"name": method}}, facts(300))]
    }
    assert len(lengths) == 1


@pytest.mark.parametrize(
    ("images", "size"), [(2, 2), (3, 2), (7, 2), (8, 4), (200, 64), (511, 128), (512, 256), (10**6, 256)]
)
def test_a_batch_is_halved_until_an_epoch_has_two_steps(images: int, size: int):
    assert usual_batch_size(256, images) == size


def test_a_batch_stays_large_enough_for_its_processes_and_parts():
    assert usual_batch_size(256, 20, smallest=8) == 8
    assert usual_batch_size(256, 20, smallest=200) == 256


@pytest.fixture
def few_images(tmp_path: Path) -> Path:
    np.save(tmp_path / "few.npy", np.random.default_rng(0).integers(0, 256, (20, 16, 16, 3), np.uint8))
    return tmp_path / "few.npy"


def test_a_few_images_get_smaller_batches_and_the_plan_says_so(few_images: Path):
    planned = plan(PretrainRequest({"data": {"source": str(few_images)}, "train": {"device": "cpu"}}))
    assert planned.config.train.batch_size == 8
    assert any("batches of 8 images, not 256" in note and "--batch-size" in note for note in planned.notes)
    assert planned.config.train.epochs == 200
    assert not any("epochs" in note for note in planned.notes)
    with pytest.raises(UserError, match="batch size 64 is larger than the data"):
        plan(PretrainRequest({"data": {"source": str(few_images)}, "train": {"batch_size": 64}}))


def test_the_plan_says_how_many_epochs_it_chose_and_a_resumed_run_keeps_them(
    few_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("carl.training.budget.CPU_PIXELS", 20 * 16**2)
    layer = {"data": {"source": str(few_images)}, "train": {"device": "cpu"}}
    planned = plan(PretrainRequest(layer, tmp_path / "run"))
    assert planned.config.train.epochs == CHOICES[0] == 10
    assert any(note.startswith("10 epochs, as usual on a CPU for 20 images") for note in planned.notes)
    run = RunDirectory.create(tmp_path / "run", planned.config, hardware(torch.device("cpu")), [])
    monkeypatch.undo()
    assert read_config(run).train.epochs == 10
    assert plan(PretrainRequest({}, resume=str(tmp_path / "run"))).config.train.epochs == 10
