"""Same seed, same machine: same bits, whatever the number of workers; and the loss curves that refactors must keep.

Golden curves are made by `python -m tests.reliability.test_determinism`, only when a change of the numbers is meant.
"""

from __future__ import annotations

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from carl.config import merge
from carl.data import decoders, open_dataset, photos, statistics
from carl.data.batches import Batches
from carl.data.images import Dataset
from carl.data.shapes import make_shapes
from carl.data.shards import find_shards
from carl.data.streaming import StreamBatches
from carl.data.views import Views, pipeline
from carl.methods import METHODS
from carl.training.commands import pretrain
from tests.methods.examples import SMALL, TINY
from tests.reliability.world import make_tars

GOLDEN = Path(__file__).with_name("golden.json")
TOLERANCE = 1e-3  # relative; what differs between processors is below it, what changes a method is not
# 20 steps at a rate that no curve explodes at, so that rounding is not magnified.
LAYER: dict[str, dict[str, Any]] = {
    "data": {"image_size": 16},
    "views": {"pipeline": "simclr"},
    "optim": {"name": "sgd", "lr": 0.02, "lr_end": 0.002, "schedule": "cosine", "weight_decay": 5e-4, "momentum": 0.9},
    "train": {"epochs": 4, "batch_size": 16, "seed": 3, "device": "cpu"},
    "probe": {"every": 0},
    "log": {"report": False, "every": 1},
}
WORKERS = pytest.mark.parametrize("workers", [1, 3, 7])


def curve(name: str, folder: Path) -> list[float]:
    """The losses of 20 steps of a method on 80 drawn images."""
    folder.mkdir(exist_ok=True)
    data = folder / "golden.npz"
    images, labels = make_shapes(80, 5)
    np.savez(data, images=images, labels=labels)
    own = {"data": {"source": str(data)}, "method": {"name": name, "preset": "paper", **SMALL.get(name, {})}}
    views = {"views": {"pipeline": "supervised"}} if name == "supervised" else {}
    run = pretrain(merge([TINY, LAYER, own, views]), folder / name, None, ["golden"])
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if record["kind"] == "step"]


@pytest.mark.parametrize("name", list(METHODS))
def test_the_loss_of_20_steps_is_the_golden_one(name: str, tmp_path: Path):
    golden = json.loads(GOLDEN.read_text())["curves"]
    assert name in golden, "a new method: make its curve with `python -m tests.reliability.test_determinism`"
    found = curve(name, tmp_path)
    assert len(found) == 20
    assert found == pytest.approx(golden[name], rel=TOLERANCE)


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(tmp_path: Path):
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
    batches = Batches(dataset.pretraining, views, 8, 1, torch.device("cpu"))
    return [view for batch in batches.epoch(0) for view in batch.views]


def use_workers(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    for module in (decoders, statistics, photos):
        monkeypatch.setattr(module, "available_cores", lambda: workers)
    pool = ThreadPoolExecutor(workers)
    monkeypatch.setattr(photos, "_pool", lambda process: pool)


@pytest.mark.parametrize("road", ["packed", "photos"])
@WORKERS
def test_views_are_the_same_bits_on_any_number_of_threads(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, road: Any, workers: int
):
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "one"))
    use_workers(monkeypatch, 1)
    expected = open_dataset(folder, image_size=16, road=road)
    wanted = views_of(expected)
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "many"))
    use_workers(monkeypatch, workers)
    dataset = open_dataset(folder, image_size=16, road=road)
    assert dataset.fingerprint == expected.fingerprint
    assert dataset.statistics == expected.statistics
    assert all(torch.equal(a, b) for a, b in zip(views_of(dataset), wanted, strict=True))


def test_decoding_in_processes_gives_the_bits_of_decoding_in_threads(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "threads"))
    expected = open_dataset(folder, image_size=16, road="packed")
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "processes"))
    monkeypatch.setattr(decoders, "PROCESSES_FROM", 1)
    monkeypatch.setattr(decoders, "available_cores", lambda: 2)
    dataset = open_dataset(folder, image_size=16, road="packed")
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
        batches = StreamBatches(shards, made, 2, 1, torch.device("cpu"), lanes=2, buffer=4)
        return [view for batch in batches.epoch(0) for view in batch.views]

    use_workers(monkeypatch, 1)
    expected = views()
    use_workers(monkeypatch, workers)
    assert all(torch.equal(a, b) for a, b in zip(views(), expected, strict=True))


def main() -> None:
    """Write golden.json."""
    with tempfile.TemporaryDirectory() as folder:
        curves = {name: [float(f"{loss:.6g}") for loss in curve(name, Path(folder))] for name in METHODS}
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(losses)}" for name, losses in curves.items())
    head = f'  "made by": "python -m tests.reliability.test_determinism",\n  "torch": "{torch.__version__}",\n'
    GOLDEN.write_text(f'{{\n{head}  "curves": {{\n{lines}\n  }}\n}}\n')


if __name__ == "__main__":
    main()
