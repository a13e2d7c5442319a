"""Same seed, same machine: same bits, whatever the number of workers; and the loss curves that refactors must keep.

Golden curves are made by `python -m tests.reliability.test_determinism`, only when a change of the numbers is meant.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from carl.config import merge
from carl.data import open_dataset, photo_images
from carl.data.batches import stream
from carl.data.batches.base import Batch
from carl.data.batches.build import batches_for
from carl.data.batches.stream import StreamBatches
from carl.data.dataset import Dataset
from carl.data.decoding import parallel
from carl.data.packing import pixel_statistics
from carl.data.sources.shapes import make_shapes
from carl.data.sources.shards import find_shards
from carl.methods import METHODS, Method
from carl.optim import build_optimizer, set_rate
from carl.training.plan import PretrainRequest, plan
from carl.training.run import carry_out
from carl.views.recipes import pipeline
from carl.views.views import Views
from tests.methods.examples import EPOCHS, FACTS, IMAGES, SIZE, SMALL, TINY, settings
from tests.reliability.world import make_tars

GOLDEN = Path(__file__).with_name("golden.json")
STEPS, STEPS_PER_EPOCH = 3 * EPOCHS, 3
# Relative. In float32 a ReLU that falls to the other side of zero, as it may with another number of threads, is 3% of
# the loss ten steps later; in float64 two orders of summation differ by less than this.
TOLERANCE = 1e-6
LAYER: dict[str, dict[str, Any]] = {
    "data": {"image_size": 16},
    "views": {"pipeline": "simclr"},
    "optim": {"name": "sgd", "lr": 0.02, "lr_end": 0.002, "schedule": "cosine", "weight_decay": 5e-4, "momentum": 0.9},
    "train": {"epochs": 4, "batch_size": 16, "seed": 3, "device": "cpu"},
    "probe": {"every": 0},
    "log": {"report": False, "every": 1},
}
WORKERS = pytest.mark.parametrize("workers", [1, 3, 7])


@torch.no_grad()
def embed_all(method: Method, images: Tensor, function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    method.eval()
    found = function(images)
    method.train()
    return torch.arange(len(images)), found


def golden_curve(name: str) -> list[float]:
    """The losses of 24 optimiser steps, 8 epochs, of a method on random images, in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(0)
        config = settings(name)
        method = METHODS[name](config, FACTS)
        generator = torch.Generator().manual_seed(1)
        images = torch.randn(IMAGES, 3, SIZE, SIZE, generator=generator)
        optimizer = build_optimizer(method, config.optim)
        losses = []
        for step in range(STEPS):
            epoch, place = divmod(step, STEPS_PER_EPOCH)
            if place == 0:
                method.before_epoch(epoch, partial(embed_all, method, images))
            rows = torch.randperm(IMAGES, generator=generator)[:16]
            noise = torch.randn(2, 16, 3, SIZE, SIZE, generator=generator)
            batch = Batch([images[rows] + 0.3 * noise[0], images[rows] + 0.3 * noise[1]], rows, rows % FACTS.classes)
            progress = step / STEPS
            set_rate(optimizer, 0.01 * (1 - progress))
            optimizer.zero_grad()
            loss, _ = method(batch, progress)
            loss.backward()
            method.after_backward(progress)
            optimizer.step()
            method.after_step(progress)
            losses.append(float(loss.detach()))
        return losses
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("name", list(METHODS))
def test_the_loss_of_24_steps_is_the_golden_one(name: str):
    golden = json.loads(GOLDEN.read_text())["curves"]
    if name not in golden:
        pytest.skip("a new method has no curve yet: make it with `python -m tests.reliability.test_determinism`")
    assert golden_curve(name) == pytest.approx(golden[name], rel=TOLERANCE)


def curve(name: str, folder: Path) -> list[float]:
    """The losses of 20 steps of a run on 80 drawn images."""
    folder.mkdir(exist_ok=True)
    data = folder / "golden.npz"
    images, labels = make_shapes(80, 5)
    np.savez(data, images=images, labels=labels)
    own = {"data": {"source": str(data)}, "method": {"name": name, "preset": "paper", **SMALL.get(name, {})}}
    run = carry_out(plan(PretrainRequest(merge([TINY, LAYER, own]), folder / name)))
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if record["kind"] == "step"]


def test_the_same_seed_gives_the_same_bits(tmp_path: Path):
    first, second = curve("carl", tmp_path / "a"), curve("carl", tmp_path / "b")
    assert first == second
    state = [torch.load(tmp_path / name / "carl" / "checkpoint.pt", weights_only=True)["method"] for name in "ab"]
    assert all(torch.equal(state[0][key], state[1][key]) for key in state[0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos that training decodes for each batch, and some that cannot be decoded."""
    root, generator = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(24):
        pixels = generator.integers(0, 256, (70 + number, 90, 3), np.uint8)
        Image.fromarray(pixels).save(root / f"{number:02}.jpg")
    (root / "bad.jpg").write_bytes(b"no image")
    return root


def views_of(dataset: Dataset) -> list[torch.Tensor]:
    views = Views(pipeline("simclr", 16), dataset.statistics.mean, dataset.statistics.std, seed=1)
    batches = batches_for(dataset.pretraining)(dataset.pretraining, views, 8, seed=1, device=torch.device("cpu"))
    return [view for batch in batches.epoch(0) for view in batch.views]


def use_workers(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    for module in (parallel, pixel_statistics):
        monkeypatch.setattr(module, "available_cores", lambda: workers)
    pool = ThreadPoolExecutor(workers)
    for user in (photo_images, stream):
        monkeypatch.setattr(user, "pool", lambda: pool)


@pytest.mark.parametrize("views_from", ["packed", "photos"])
@WORKERS
def test_views_are_the_same_bits_on_any_number_of_threads(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, views_from: Any, workers: int
):
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "one"))
    use_workers(monkeypatch, 1)
    expected = open_dataset(folder, image_size=16, views_from=views_from)
    wanted = views_of(expected)
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "many"))
    use_workers(monkeypatch, workers)
    dataset = open_dataset(folder, image_size=16, views_from=views_from)
    assert dataset.fingerprint == expected.fingerprint
    assert dataset.statistics == expected.statistics
    assert all(torch.equal(a, b) for a, b in zip(views_of(dataset), wanted, strict=True))


def test_decoding_in_processes_gives_the_bits_of_decoding_in_threads(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "threads"))
    expected = open_dataset(folder, image_size=16, views_from="packed")
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "processes"))
    monkeypatch.setattr(parallel, "PROCESSES_FROM", 1)
    monkeypatch.setattr(parallel, "available_cores", lambda: 2)
    dataset = open_dataset(folder, image_size=16, views_from="packed")
    assert dataset.fingerprint == expected.fingerprint
    np.testing.assert_array_equal(dataset.train.images.pixels, expected.train.images.pixels)


@WORKERS
def test_a_stream_is_the_same_bits_on_any_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
):
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "cache"))
    make_tars(tmp_path)
    shards = find_shards(str(tmp_path / "good.tar"), lambda what, done, total: None)

    def views() -> list[torch.Tensor]:
        made = Views(pipeline("simclr", 16), (0.5,) * 3, (0.2,) * 3, seed=1)
        batches = StreamBatches(
            shards, made, 2, seed=1, device=torch.device("cpu"), lanes=2, buffer=4, whole_size=(16, 16)
        )
        return [view for batch in batches.epoch(0) for view in batch.views]

    use_workers(monkeypatch, 1)
    expected = views()
    use_workers(monkeypatch, workers)
    assert all(torch.equal(a, b) for a, b in zip(views(), expected, strict=True))


def main() -> None:
    """Write golden.json."""
    curves = {name: [float(f"{loss:.10g}") for loss in golden_curve(name)] for name in METHODS}
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(losses)}" for name, losses in curves.items())
    head = f'  "made by": "python -m tests.reliability.test_determinism",\n  "torch": "{torch.__version__}",\n'
    GOLDEN.write_text(f'{{\n{head}  "curves": {{\n{lines}\n  }}\n}}\n')


if __name__ == "__main__":
    main()
