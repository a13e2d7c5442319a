"""How large an experiment is run: the paper's own size, a CPU's afternoon, or minutes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from carl.config import Layer, merge
from carl.errors import UserError
from carl.experiments.jobs import Measure

# Names as the paper prints them.
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "stl10": "STL-10", "imagenet64": "DS ImageNet"}
IMAGES = {"cifar10": 50_000, "cifar100": 50_000, "stl10": 100_000, "imagenet64": 1_281_167}
# A file of this name in --data-root is taken for the data set; otherwise the root is where downloads are.
FILES = {"cifar10": ("cifar10-train.parquet",), "cifar100": ("cifar100-train.parquet", "cifar100-train-10k.parquet")}


@dataclass(frozen=True)
class Scale:
    """What stands for the paper's data, epochs, seeds and protocol at this size."""

    name: str
    words: str  # said in every table
    data: tuple[str, ...]  # of the paper's data sets, those that are used
    unlabelled: str  # what stands for STL-10
    epochs: Mapping[int, int]  # the paper's number of epochs -> ours
    seeds: Mapping[str, int]  # by method; "" for the others
    common: Layer  # laid over every run
    linear: tuple[str, ...]  # protocols that stand for linear evaluation, the first is shown
    transfer: str
    limit: int | None = None  # training images
    small: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # grids cut down: "prototypes", "batches"
    train_epochs: int | None = None  # of finetune and semi
    root: Path | None = None

    def source(self, name: str) -> Layer:
        """The data section for a data set of the paper."""
        if self.name == "smoke":
            return {"data": {"source": "shapes", "limit": self.limit}}
        if self.root is not None:
            for file in FILES.get(name, ()):
                if (self.root / file).is_file():
                    return {"data": {"source": str((self.root / file).resolve()), "limit": self.limit}}
            return {"data": {"source": name, "root": str(self.root.resolve()), "limit": self.limit}}
        return {"data": {"source": name, "limit": self.limit}}

    def images(self, name: str) -> int:
        return min(IMAGES[name], self.limit or IMAGES[name])

    def grid(self, what: str, values: tuple[int, ...]) -> tuple[int, ...]:
        return self.small.get(what, values)

    def seeds_of(self, method: str, data: str) -> range:
        return range(1 if data == "imagenet64" else self.seeds.get(method, self.seeds[""]))

    def run(self, data: str, layer: Layer) -> Layer:
        return merge([self.source(data), self.common, layer])

    def linear_measures(self, at_epoch: int | None = None) -> tuple[Measure, ...]:
        return tuple(Measure(protocol, at_epoch=at_epoch) for protocol in self.linear)


PAPER = Scale(
    name="paper",
    words="the paper's settings",
    data=("cifar10", "cifar100", "stl10", "imagenet64"),
    unlabelled="stl10",
    epochs={50: 50, 100: 100, 150: 150, 200: 200},
    seeds={"": 3},
    common={},
    linear=("linear",),
    transfer="transfer",
)

# Chosen on 2026-11-16, before any of its runs: 10,000 training images, 20 epochs of 39 steps, whole test sets. Every
# method with the values of its `paper` preset (MoCo's queue and PCL's clusters cut to the data), lambda falling over
# half of the run, as 100 of 200 epochs. STL-10 and ImageNet are left out, and CIFAR-10 stands for STL-10.
CPU = Scale(
    name="cpu",
    words="10,000 training images, 20 epochs where the paper has 150 or 200, linear-cached",
    data=("cifar10",),
    unlabelled="cifar10",
    epochs={50: 5, 100: 10, 150: 20, 200: 20},
    seeds={"": 1, "carl": 3, "simclr": 3, "random": 3},
    common={"log": {"report": False}, "probe": {"every": 1}},
    linear=("linear-cached", "knn"),
    transfer="linear-cached",
    limit=10_000,
    small={"prototypes": (10, 100, 1000), "batches": (64, 256, 1024), "kept": (200,)},
    train_epochs=5,
)

SMOKE = Scale(
    name="smoke",
    words="a check that everything runs; the numbers mean nothing",
    data=("cifar10",),
    unlabelled="cifar10",
    epochs={50: 1, 100: 1, 150: 2, 200: 2},
    seeds={"": 1},
    common={
        "data": {"image_size": 16},
        "model": {"backbone": "test_resnet"},
        "train": {"batch_size": 32},
        "log": {"report": False},
        "probe": {"images": 100, "train_images": 100},
    },
    linear=("knn",),
    transfer="knn",
    limit=128,
    small={"prototypes": (10, 20), "batches": (16, 32), "kept": (200,)},
    train_epochs=1,
)

SCALES = {scale.name: scale for scale in (SMOKE, CPU, PAPER)}


def find_scale(name: str) -> Scale:
    if name not in SCALES:
        raise UserError(f"unknown scale {name!r}; use {', '.join(SCALES)}")
    return SCALES[name]
