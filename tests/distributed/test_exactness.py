"""Two processes on halves of a batch learn what one process learns from the whole, whatever the method."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest
import torch
from benchmarks import processes as benchmark
from timm.layers import BatchNormAct2d
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from carl import distributed
from carl.config import Config, resolve
from carl.data.batches.base import Batch
from carl.data.batches.packed import PackedBatches
from carl.data.dataset import PackedImages, Split
from carl.data.facts import DataFacts
from carl.errors import UserError
from carl.methods import METHODS, Method
from carl.methods.pcl import Clusterings
from carl.models.batch_norm import average_running_statistics, share_batch_norm
from carl.models.momentum import forward_shuffled
from carl.models.tiny_maps import adapt_to_tiny_maps
from carl.training.learner import Learner
from carl.views.configured import build_views
from tests.distributed import processes

Norm = Literal["none", "shared"]

IMAGES, SIZE, BATCH, STEPS = 40, 16, 8, 20
FACTS = DataFacts(name="shapes", images=IMAGES, channels=3, image_size=SIZE, classes=4)
SMALL: dict[str, dict[str, Any]] = {  # every part of every method at work, in all epochs
    "carl": {"prototypes": 10, "prototype_scale": 1.0},
    "carl in parts": {
        "prototypes": 10, "parts": 4, "beyond_chance": True, "embedding_norm": "batch-l2", "prototype_norm": True,
        "temperature": 0.1,
    },
    "carl of many views": {
        "prototypes": 10, "parts": 4, "beyond_chance": True, "embedding_norm": "batch-l2", "prototype_norm": True,
        "temperature": 0.1, "against": "mean", "negatives": "means", "teacher": 0.9,
    },
    "moco": {"queue": 24, "shuffle_groups": 2},
    "pcl": {"queue": 24, "shuffle_groups": 2, "clusters": [4, 6], "warmup_epochs": 1, "negative_prototypes": 3},
    "swav": {"queue": 18, "queue_epoch": 1, "frozen_epochs": 1},
    "byol": {"momentum": 0.9},
    "carp": {"prototypes": 10, "partition_size": 3, "momentum": 0.9},
    "deepcluster": {"clusters": [4, 6, 5]},
    "vicreg of many views": {"regulariser": "coding-rate", "loss_scale": 0.01},
}  # fmt: skip
VARIANTS = ("carl in parts", "carl of many views", "vicreg of many views")
VIEWS: dict[str, dict[str, Any]] = {
    "carl of many views": {"count": 3, "small_count": 1},
    "vicreg of many views": {"count": 3},
}
WHOLE_BATCH = ("carl", "carl in parts", "carl of many views", "simclr")  # objectives that see the batch of all
CASES = [(name, norm) for name in (*METHODS, *VARIANTS) for norm in ("none", "shared")]


def method_of(name: str) -> type[Method]:
    return METHODS[name.partition(" ")[0]]


def settings(name: str) -> Config:
    method = method_of(name)
    layers = [
        method.preset(method.default_preset(FACTS), FACTS),
        {
            "data": {"source": "shapes", "image_size": SIZE},
            "views": VIEWS.get(name, {}),
            "model": {"hidden_dim": 16, "output_dim": 8},
            "method": {"name": name.partition(" ")[0], **SMALL.get(name, {})},
            "optim": {"name": "sgd", "lr": 0.05, "schedule": "constant"},
            "train": {"epochs": 4, "batch_size": BATCH},
        },
    ]
    return method.completed(resolve(layers, method.Options))


def small_encoder(*_: Any) -> nn.Module:
    """Few layers, since each batch norm is a message in every step."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), BatchNormAct2d(8), nn.Conv2d(8, 12, 3), nn.BatchNorm2d(12), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def remove_batch_norm(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, _BatchNorm):
            after = getattr(child, "act", nn.Identity())
            setattr(module, name, after)
        else:
            remove_batch_norm(child)


def as_float64(batch: Batch) -> Batch:
    return Batch([view.double() for view in batch.views], batch.indices, batch.labels)


def train(
    name: str, norm: Norm, accumulate: int = 1, encoder: Callable[..., nn.Module] = small_encoder
) -> dict[str, Any]:
    """Losses of all steps, gradients of the first, and the state at the end; in float64, so that only errors differ."""
    torch.manual_seed(0)
    config = settings(name)
    config = config.model_copy(update={"train": config.train.model_copy(update={"accumulate": accumulate})})

    def build(*given: Any) -> nn.Module:
        return adapt_to_tiny_maps(encoder(*given))

    with mock.patch("carl.models.encoders.build_encoder", build):
        method = method_of(name)(config, FACTS).double()
    if norm == "none":
        remove_batch_norm(method)
    elif distributed.world_size() > 1:
        share_batch_norm(method, torch.device("cpu"))
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (IMAGES, SIZE, SIZE, 3), np.uint8)
    split = Split(PackedImages(pixels), labels=np.arange(IMAGES) % 4)
    views = build_views(config, (0.5,) * 3, (0.2,) * 3)
    rank, ranks = distributed.rank(), distributed.world_size()
    batches = PackedBatches(split, views, BATCH, seed=0, device=torch.device("cpu"), rank=rank, ranks=ranks)
    whole_images = torch.from_numpy(pixels).permute(0, 3, 1, 2).double() / 255

    def embed_all(function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        average_running_statistics(method)
        rows = torch.from_numpy(np.array_split(np.arange(IMAGES), ranks)[rank])
        method.eval()
        with torch.no_grad():
            found = function(whole_images[rows])
        method.train()
        return rows, found

    learner = Learner(config, method, batches.device, config.train.epochs * batches.steps_per_epoch)
    losses, gradients = [], {}
    for epoch in range(STEPS // batches.steps_per_epoch):
        method.before_epoch(epoch, embed_all)
        for batch in batches.epoch(epoch, partners=method.partners(epoch)):
            losses.append(float(distributed.mean(learner.take_step(as_float64(batch))["loss"])))
            if learner.steps_done == 1:
                gradients = {key: p.grad.clone() for key, p in method.named_parameters() if p.grad is not None}
    average_running_statistics(method)
    return {"losses": losses, "gradients": gradients, "state": method.state_dict()}


def train_all(cases: list[tuple[str, Norm, int]], folder: Path) -> None:
    distributed.start(torch.device("cpu"))
    for name, norm, accumulate in cases:
        result = train(name, norm, accumulate)
        torch.save(result, folder / f"{name}-{norm}-{accumulate}-{distributed.rank()}.pt")
    distributed.stop()


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    cases = [(name, norm, 1) for name, norm in CASES] + [(name, "none", 2) for name in WHOLE_BATCH]
    processes.run(2, folder, train_all, cases, folder)
    return folder


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    floating = [key for key in expected if expected[key].is_floating_point()]
    largest = max(expected[key].norm() for key in floating)
    for key in floating:
        scale = torch.maximum(expected[key].norm(), 1e-8 * largest)  # a bias before a batch norm has gradient zero
        assert float((found[key] - expected[key]).norm() / scale) < tolerance, key


@pytest.mark.parametrize(("name", "norm"), CASES)
def test_two_processes_have_the_losses_gradients_and_weights_of_one(by_two: Path, name: str, norm: Norm):
    whole = train(name, norm)
    for rank in range(2):
        part = torch.load(by_two / f"{name}-{norm}-1-{rank}.pt", weights_only=True)
        assert part["losses"] == pytest.approx(whole["losses"], rel=1e-5)
        assert_close(part["gradients"], whole["gradients"], 1e-5)
        assert_close(part["state"], whole["state"], 1e-5)
    assert np.std(whole["losses"]) > 1e-3  # something was learned, so that there was something to miss


@pytest.mark.parametrize("name", WHOLE_BATCH)
def test_parts_of_the_batch_of_each_process_add_up_to_the_whole(by_two: Path, name: str):
    whole, part = train(name, "none"), torch.load(by_two / f"{name}-none-2-1.pt", weights_only=True)
    assert part["losses"] == pytest.approx(whole["losses"], rel=1e-5)
    assert_close(part["state"], whole["state"], 1e-5)


class WithIdleWeights(nn.Module):
    """An encoder some of whose weights nothing is computed with, as some of timm's have."""

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.used, self.spare = small_encoder(), nn.Linear(3, 2)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.used(images)
        return features


def train_with_idle_weights() -> None:
    distributed.start(torch.device("cpu"))
    with pytest.raises(UserError, match=r"2 weights of resnet18 .*encoder.spare.weight.*train.accumulate=2"):
        train("carl", "none", encoder=WithIdleWeights)
    train("carl", "none", 2, WithIdleWeights)  # the remedy
    distributed.stop()


def test_weights_without_a_gradient_are_named_with_what_helps(tmp_path: Path):
    processes.run(2, tmp_path, train_with_idle_weights)


def draw_with_other_seeds() -> None:
    """What is drawn for all processes is the same in all, whatever the state of their generators."""
    distributed.start(torch.device("cpu"))
    rank = distributed.rank()
    images = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(rank)
    module = small_encoder().eval()  # without batch statistics the groups cannot be seen
    distributed.copy_from_main(module)
    mine = images[rank::2]
    with torch.no_grad():
        torch.testing.assert_close(forward_shuffled(module, mine, 2), module(mine), atol=1e-6, rtol=1e-5)
    clusterings = Clusterings([30], 8, 5)
    clusterings.centroids(0).copy_(torch.randn(30, 5, generator=torch.Generator().manual_seed(1)))
    clusterings.concentrations(0).fill_(0.2)
    same = torch.randn(4, 5, generator=torch.Generator().manual_seed(2))
    distributed.check_agreement("the loss", str(clusterings.proto_nce(same, torch.arange(4), 3).item()))
    distributed.stop()


def test_random_draws_are_the_main_processs_even_if_the_generators_differ(tmp_path: Path):
    processes.run(2, tmp_path, draw_with_other_seeds)


def count_bytes(names: list[str]) -> None:
    benchmark.BATCH = 16
    distributed.start(torch.device("cpu"))
    for name in names:
        assert benchmark.count_traffic(name) == benchmark.expected_traffic(name), name
    distributed.stop()


def test_a_step_sends_the_bytes_that_the_documents_say(tmp_path: Path):
    processes.run(2, tmp_path, count_bytes, ["carl", "simclr", "moco", "swav"])
