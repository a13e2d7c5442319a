"""What several processes do with a trained encoder: judge it and embed with it, each its share, as one would."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest
import timm
import torch
from PIL import Image
from torch import Tensor, nn

import carl
from carl import distributed
from carl.data.batches.packed import PackedBatches
from carl.data.dataset import PackedImages, Split, Statistics
from carl.errors import UserError
from carl.evaluation import clusters, evaluate, features, fine_tuning
from carl.evaluation.evaluation_data import EvaluationData
from carl.evaluation.features import map_images_together
from carl.evaluation.linear_classifiers import Classifiers, linear_evaluation
from carl.evaluation.protocols.finetune import FinetuneRecipe
from carl.evaluation.protocols.linear import LinearRecipe
from carl.use import embed as embed_module
from carl.use.embedding_files import embeddings_of
from carl.views.views import Views
from tests.distributed import processes

CPU = torch.device("cpu")
STATISTICS = Statistics((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def noted(rows: Any, file: str) -> None:
    with open(f"{file}-{os.environ['RANK']}.txt", "a") as lines:
        lines.writelines(f"{row}\n" for row in rows)


def notes(folder: Path, file: str) -> list[str]:
    return [line for path in folder.glob(f"{file}-*.txt") for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def run(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"method.prototypes": 10, "probe.every": 0, "log.report": False}
    out = tmp_path_factory.mktemp("runs") / "carl"
    return carl.pretrain(small_data, out=out, backbone="test_resnet", epochs=1, batch_size=32, settings=settings)


# Evaluation


def evaluate_watched(arguments: list[str]) -> None:
    """`carl eval`, with a line for each image that this process reads (by what, split, place) or clusters."""
    plain, plain_kmeans = features.map_images, clusters.kmeans

    def note(function: Any, split: Any, statistics: Any, size: int, device: Any, rows: Any = None, **named: Any) -> Any:
        places = range(len(split)) if rows is None else rows
        what = id(function) if isinstance(function, nn.Module) else "prototypes"
        noted([f"{what if what == 'prototypes' else _number(what)} {len(split)} {row}" for row in places], "read")
        return plain(function, split, statistics, size, device, rows=rows, **named)

    seen: list[int] = []

    def _number(what: int) -> int:
        if what not in seen:
            seen.append(what)
        return seen.index(what)

    def kmeans(points: Tensor, *given: Any, **named: Any) -> Any:
        noted(["point"] * len(points), "clustered")
        return plain_kmeans(points, *given, **named)

    with mock.patch.object(features, "map_images", note), mock.patch.object(clusters, "kmeans", kmeans):
        processes.command(*arguments)


@pytest.mark.parametrize("target", ["random", "run"])
@pytest.mark.parametrize("protocol", ["knn", "cluster"])
def test_two_processes_read_each_image_once_for_each_encoder_and_find_what_one_finds(
    tmp_path: Path, small_data: Path, run: Path, target: str, protocol: str
):
    given = [str(run)] if target == "run" else ["random", "--data", str(small_data), "--backbone", "test_resnet"]
    found = {}
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        processes.run(ranks, folder, evaluate_watched, ["eval", *given, "--protocol", protocol, "--out", "results"])
        (file,) = (folder / "results").glob("*.json")
        found[ranks] = json.loads(file.read_text())["accuracy"]
        lines = notes(folder, "read")
        passes = 1 if target == "random" else 2  # the run's encoder, and the same with random weights
        passes += protocol == "cluster" and target == "run"  # the prototypes that the images choose
        assert len(set(lines)) == passes * (96 + 32)
        assert set(Counter(lines).values()) == {1}
    assert found[1] == found[2]
    clustered = [len(notes(tmp_path / str(ranks), "clustered")) for ranks in (1, 2)]
    assert clustered[0] == clustered[1]  # each process its share
    assert bool(clustered[0]) == (protocol == "cluster")
    assert (tmp_path / "2" / "output-0.txt").read_text()
    assert not (tmp_path / "2" / "output-1.txt").read_text()


def only_main_sees_the_result(arguments: list[str]) -> None:
    if os.environ["RANK"] == "1":
        evaluate.stored_result = lambda path, expected: None
    with mock.patch.object(evaluate, "measure", side_effect=AssertionError("measured again")):
        processes.command(*arguments)


def test_the_first_process_decides_whether_a_result_is_there(tmp_path: Path, run: Path):
    arguments = ["eval", str(run), "--out", str(tmp_path / "results")]
    processes.run(1, tmp_path / "1", processes.command, *arguments)
    processes.run(2, tmp_path / "2", only_main_sees_the_result, arguments)


class Mean(nn.Module):
    """Features that are the means of the channels, and something of the places."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([images.mean((2, 3)), images[:, :, 2, 3]], dim=1)


def some_images(count: int) -> Split:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 8, 8, 3), np.uint8)
    pixels[: count // 2, :, :, 0] //= 2  # of the first class
    return Split(PackedImages(pixels), (np.arange(count) >= count // 2).astype(np.int64))


def map_few() -> None:
    distributed.start(CPU)
    split = some_images(2)
    found = map_images_together(Mean(), split, STATISTICS, 8, CPU)
    with distributed.computing_alone():
        expected = features.map_images(Mean(), split, STATISTICS, 8, CPU)
    torch.testing.assert_close(found, expected)
    distributed.stop()


def test_more_processes_than_images_find_what_one_finds(tmp_path: Path):
    processes.run(3, tmp_path, map_few)


@contextmanager
def noting_batches() -> Iterator[None]:
    plain = PackedBatches.read_pixels

    def read(split: Split, views: Views, rows: np.ndarray, epoch: int) -> list[Tensor]:
        noted([f"{epoch} {row}" for row in rows.tolist()], "trained")
        return plain(split, views, rows, epoch)

    with mock.patch.object(PackedBatches, "read_pixels", staticmethod(read)):
        yield


def linear_with_two_rates() -> None:
    distributed.start(CPU)
    train, test = some_images(26), some_images(9)
    rows, silent = np.arange(26), lambda what, done, total: None
    data = EvaluationData(train, test, rows, STATISTICS, 8, 0.5, 2, CPU, silent)
    made: list[Classifiers] = []
    plain = Classifiers.__init__

    def init(self: Classifiers, *given: Any) -> None:
        plain(self, *given)
        made.append(self)

    recipe = LinearRecipe(epochs=3, rates=(3.0, 0.3), batch_size=8)  # the last batch has two images
    with mock.patch.object(Classifiers, "__init__", init), noting_batches(), distributed.computing_alone():
        result = linear_evaluation(Mean(), data, recipe, seed=0)
    torch.save([made[0].weight, made[0].bias, torch.tensor(result.accuracy.top1)], f"{os.environ['RANK']}.pt")
    distributed.stop()


def test_two_and_three_processes_train_the_linear_classifiers_of_one(tmp_path: Path):
    found: dict[int, list[list[Tensor]]] = {}
    for ranks in (1, 2, 3):
        folder = tmp_path / str(ranks)
        processes.run(ranks, folder, linear_with_two_rates)
        found[ranks] = [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(ranks)]
        assert Counter(notes(folder, "trained")) == dict.fromkeys((f"{e} {i}" for e in range(3) for i in range(26)), 1)
    assert float(found[1][0][0].abs().max()) > 0.1  # it has learned something
    for one in (*found[2], *found[3]):
        for mine, whole in zip(one, found[1][0], strict=True):
            torch.testing.assert_close(mine, whole, atol=1e-4, rtol=1e-4)


class InDouble(nn.Module):
    """A ResNet whose ReLUs do not turn with the last bits of float32."""

    def __init__(self) -> None:
        super().__init__()
        self.resnet = timm.create_model("test_resnet", num_classes=0).double()

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.resnet(images.double())
        return features.float()


def fine_tune() -> None:
    distributed.start(CPU)
    torch.manual_seed(0)
    encoder = InDouble()
    train, test = some_images(26), some_images(9)
    rows, silent = np.arange(26), lambda what, done, total: None
    data = EvaluationData(train, test, rows, STATISTICS, 32, 0.5, 2, CPU, silent)
    recipe = FinetuneRecipe(epochs=3, batch_size=8)  # the last batch has two images, which is none for the third
    trained: list[nn.Module] = []
    plain = fine_tuning.train

    def train_and_keep(model: nn.Module, *given: Any) -> None:
        plain(model, *given)
        trained.append(model)

    keeping = mock.patch.object(fine_tuning, "train", train_and_keep)
    with keeping, noting_batches(), distributed.computing_alone():
        result = fine_tuning.finetune(encoder, data, recipe, 1.0, seed=0)
    weights = {**trained[0].state_dict(), "top1": torch.tensor(result.accuracy.top1)}
    start = {f"0.{name}": value for name, value in encoder.state_dict().items()}
    torch.save([weights, start], f"{os.environ['RANK']}.pt")
    distributed.stop()


def test_two_and_three_processes_fine_tune_to_the_weights_of_one(tmp_path: Path):
    found: dict[int, list[Any]] = {}
    for ranks in (1, 2, 3):
        folder = tmp_path / str(ranks)
        processes.run(ranks, folder, fine_tune)
        found[ranks] = [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(ranks)]
        assert Counter(notes(folder, "trained")) == dict.fromkeys((f"{e} {i}" for e in range(3) for i in range(26)), 1)
    weights, start = found[1][0]
    moved = {name: (weights[name] - value).double().norm() for name, value in start.items() if "num" not in name}
    assert min(moved.values()) > 0
    for other, _ in (*found[2], *found[3]):
        for name, moves in moved.items():
            assert (other[name] - weights[name]).double().norm() < 1e-4 * moves + 1e-9, name
        assert other["top1"] == weights["top1"]


# Embedding


def embed_in_small_parts(arguments: list[str], fail_at: int = -1) -> None:
    """`carl embed` with parts of ten images, and a line for each part that this process makes."""
    plain = embed_module.Parts.write

    def write(self: Any, number: int, rows: Any, bad: Any) -> None:
        if number == fail_at:
            raise UserError("a planned failure; remove it")
        noted([f"{number} {name}" for name in rows.column("path").to_pylist()], "made")
        plain(self, number, rows, bad)

    small = mock.patch.multiple(embed_module, PART=10, KEEP_EVERY=0.0)
    with mock.patch.object(embed_module.Parts, "write", write), small:
        processes.command(*arguments)


@pytest.fixture(scope="module")
def photos(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    with np.load(small_data) as arrays:
        for number, pixels in enumerate(arrays["x_train"][:47]):
            Image.fromarray(pixels).save(folder / f"{number:03d}.png")
    (folder / "013.png").write_bytes(b"no image")
    return folder


def test_two_processes_embed_each_image_once_into_the_file_of_one(tmp_path: Path, run: Path, photos: Path):
    tables = {}
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        processes.run(ranks, folder, embed_in_small_parts, ["embed", str(run), str(photos), "-o", "e.parquet"])
        tables[ranks] = pq.read_table(folder / "e.parquet")
        made = [line.split()[1] for line in notes(folder, "made")]
        assert sorted(made) == sorted(tables[ranks].column("path").to_pylist())
        assert "013.png" in (folder / "e.parquet.bad-files.txt").read_text()
        assert not (folder / "e.parquet.parts").exists()
    assert {line.split()[0] for line in (tmp_path / "2" / "made-1.txt").read_text().splitlines()} == {"1", "3"}
    assert tables[1].drop(["embedding"]).slice(0, 5).column_names == tables[2].drop(["embedding"]).column_names
    assert tables[1].column("path") == tables[2].column("path")
    np.testing.assert_allclose(embeddings_of(tables[1]), embeddings_of(tables[2]), atol=1e-6)
    assert (tmp_path / "2" / "output-0.txt").read_text()
    assert not (tmp_path / "2" / "output-1.txt").read_text()


def test_two_processes_go_on_with_the_parts_that_are_there(tmp_path: Path, run: Path, photos: Path):
    arguments = ["embed", str(run), str(photos), "-o", "e.parquet", "--batch-size", "4"]
    group = processes.Group(2, tmp_path, embed_in_small_parts, arguments, 3)
    assert group.wait()[1] == 2
    assert group.outputs().count("a planned failure") == 1
    assert (tmp_path / "e.parquet.parts" / "000003.begun.parquet").is_file()
    processes.run(2, tmp_path, embed_in_small_parts, arguments)
    assert "resumed after" in (tmp_path / "output-0.txt").read_text()
    processes.run(1, tmp_path / "one", embed_in_small_parts, arguments)
    names = [pq.read_table(path / "e.parquet").column("path") for path in (tmp_path, tmp_path / "one")]
    assert len(names[0]) == 46
    assert names[0] == names[1]


def test_parts_that_the_first_process_cannot_see_are_missed(tmp_path: Path, run: Path, photos: Path):
    group = processes.Group(2, tmp_path, embed_apart, ["embed", str(run), str(photos), "-o", "e.parquet"])
    assert 2 in group.wait()
    assert "write to a disk that all machines see" in group.outputs()
    assert not (tmp_path / "0" / "e.parquet").exists()


def embed_apart(arguments: list[str]) -> None:
    """As on machines that share no disk."""
    Path(os.environ["RANK"]).mkdir()
    os.chdir(os.environ["RANK"])
    embed_in_small_parts(arguments)


@pytest.mark.parametrize("command", ["search", "curate"])
def test_search_and_curate_by_two_processes_embed_once_and_speak_once(
    tmp_path: Path, run: Path, photos: Path, command: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CARL_CACHE", str(tmp_path / "cache"))
    rest = [str(photos / "001.png")] if command == "search" else ["--keep", "12"]
    processes.run(2, tmp_path, embed_in_small_parts, [command, str(run), str(photos), *rest])
    made = [line.split()[1] for line in notes(tmp_path, "made")]
    assert len(made) == len(set(made)) == 46
    assert (tmp_path / "output-0.txt").read_text()
    assert not (tmp_path / "output-1.txt").read_text()
