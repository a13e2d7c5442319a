"""How large an experiment is run: the paper's own size, a CPU's afternoon, or minutes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from carl.config import Layer, merge
from carl.defaults import RANDOM
from carl.defaults import SCALES as NAMES
from carl.records.known_data import KNOWN_DATA
from carl.reproduction.jobs import Measure

SMOKE_SIZE, CPU_SIZE, PAPER_SIZE = NAMES

MAIN = "cifar10"  # where the seven methods are compared at every scale


def paper_images(data: str, method: str) -> int:
    """How many images a method trains on in the paper; a supervised one has only those with labels."""
    return KNOWN_DATA[data].labelled if method == "supervised" else KNOWN_DATA[data].images


@dataclass(frozen=True)
class Scale:
    """What stands for the paper's data, epochs, seeds and protocol at this size."""

    name: str
    words: str  # said in every table
    data: tuple[str, ...]  # of the paper's data sets, those that are used
    unlabelled: str  # what stands for STL-10
    epochs: Mapping[int, int]  # the paper's number of epochs -> ours, for those that are used
    common: Layer  # laid over every run
    on_the_way: bool  # whether encoders that were kept before the end are measured too
    linear: tuple[str, ...]  # protocols that stand for linear evaluation, the first is shown
    transfer: str
    seeds: int = 1
    main_seeds: Mapping[str, int] = field(default_factory=dict)  # more, by method, in the comparison on MAIN
    limit: int | None = None  # training images
    small: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # grids cut down: "prototypes", "batches"
    train_epochs: int | None = None  # of finetune and semi
    back: tuple[str, ...] = ("supervised", "byol", "simclr", "carl")  # methods of table 3 from CIFAR-100 to CIFAR-10
    source: str | None = None  # stands for every data set
    joint: bool = False  # whether the other reading of Eq. 4 is shown beside the paper preset's
    reasons: bool = False  # whether methods whose values are for long runs are shown with one for short runs too
    own_runs: bool = False  # for the 100-epoch columns of table 2, instead of an encoder on the way to 200

    @property
    def readings(self) -> tuple[bool, ...]:
        """The readings of Eq. 4 that are shown: whether the targets are joint."""
        return (False, True) if self.joint else (False,)

    def data_section(self, name: str) -> Layer:
        """The data section for a data set of the paper, without where it is on this machine."""
        return {"data": {"source": self.source or name, "limit": self.limit, "limit_by": "first"}}

    def images(self, name: str, method: str) -> int:
        images = paper_images(name, method)
        return min(images, self.limit or images)

    def grid(self, what: str, values: tuple[int, ...]) -> tuple[int, ...]:
        return self.small.get(what, values)

    def seeds_of(self, method: str, data: str, variant: str = "") -> range:
        """Variants of CARL have no more seeds than other runs, except for the other reading of Eq. 4."""
        if data == "imagenet64":
            return range(1)  # paper, table 2: "a single run"
        more = self.main_seeds.get(method, self.seeds) if data == MAIN and variant in ("", "joint") else self.seeds
        return range(more)

    def run_layer(self, data: str, layer: Layer) -> Layer:
        """All runs in float32, so that the numbers of a table compare whatever machine each was made on."""
        same: Layer = {"log": {"report": False}, "train": {"precision": "fp32"}}
        return merge([self.data_section(data), same, self.common, layer])

    def linear_measures(self, at_epoch: int | None = None) -> tuple[Measure, ...]:
        return tuple(Measure(protocol, at_epoch=at_epoch) for protocol in self.linear)


PAPER = Scale(
    name=PAPER_SIZE,
    words="set up as in the paper; what is in italics was measured otherwise",
    data=("cifar10", "cifar100", "stl10", "imagenet64"),
    unlabelled="stl10",
    epochs={50: 50, 100: 100, 150: 150, 200: 200},
    seeds=3,
    common={},
    on_the_way=True,
    linear=("linear",),
    transfer="transfer",
)

# Chosen on 2026-11-16, before any of its runs: 10,000 training images, 20 epochs of 39 steps, whole test sets. Every
# method with the values of its `paper` preset (MoCo's queue and PCL's clusters cut to the data), lambda falling over
# half of the run, as 100 of 200 epochs, and over 13 of 20 in the ablations, as 100 of 150. STL-10 and ImageNet are left
# out, and CIFAR-10 stands for STL-10. 34 runs are trained: three seeds for CARL and SimCLR in the comparison of
# methods, one for all else, K and batch thinned out, and transfer from CIFAR-100 for two methods of four. On 2026-11-17
# the paper preset got averaged targets, since with joint ones (2,2) and K = 1,000 collapsed here and not in the paper;
# 16 runs with joint ones stay beside them. Last came the other two methods from CIFAR-100, and BYOL and SwAV, which had
# ended below random weights, with one value for short runs each.
CPU = Scale(
    name=CPU_SIZE,
    words="10,000 training images, 20 epochs where the paper has 150 or 200, MoCo's queue and PCL's clusters cut to "
    "the data, linear-cached",
    data=("cifar10",),
    unlabelled="cifar10",
    epochs={150: 20, 200: 20},
    main_seeds={"carl": 3, "simclr": 3, RANDOM: 3},
    common={"probe": {"every": 1}},
    on_the_way=False,
    linear=("linear-cached", "knn"),
    transfer="linear-cached",
    limit=10_000,
    small={"prototypes": (10, 100, 1000), "batches": (64, 256, 1024)},
    train_epochs=5,
    joint=True,
    reasons=True,
)

SMOKE = Scale(
    name=SMOKE_SIZE,
    words="a check that everything runs; the numbers mean nothing",
    data=("cifar10",),
    unlabelled="cifar10",
    epochs={150: 2, 200: 2},
    common={
        "data": {"image_size": 16},
        "model": {"backbone": "test_resnet"},
        "train": {"batch_size": 32},
        "probe": {"images": 100, "train_images": 100},
    },
    on_the_way=False,
    linear=("knn",),
    transfer="knn",
    limit=128,
    small={"prototypes": (10, 20), "batches": (16, 32)},
    train_epochs=1,
    back=("carl",),
    source="shapes",
)

SCALES = {scale.name: scale for scale in (SMOKE, CPU, PAPER)}
