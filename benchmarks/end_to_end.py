"""Images a second of SimCLR training on a CPU: this package, lightly, and our step on views already made.

    python -m benchmarks.end_to_end [--json] [--steps 12] [--repeats 3] [--threads 2]

All train ResNet-18 with the ImageNet stem on the built-in 10,000 images of 32 px, batches of 256 pairs of views, SGD.
Ours is the training stream and the step of `carl pretrain --method simclr`. lightly is its PyTorch example for
SimCLR: torchvision's resnet18 without its last layer, SimCLRProjectionHead(512, 512, 128), SimCLRTransform of 32 px
(the example leaves the blur out; ours blurs every second view), NTXentLoss, SGD with rate 0.06, and a DataLoader with
two workers. The floor takes our step on a few batches of views that are made beforehand. Each side runs in float32, as
the example is published, and under bfloat16 autocast (`_bf16`).

An epoch is 39 steps. To keep a run at a few minutes a turn is `--steps` of them after WARM_UP steps that are not
counted (they fill the buffers of the workers); `--steps 39` is a whole epoch. The sides take turns, so that a slow
minute of the machine meets all of them. Clock on the wall; medians over the turns, and the lowest and highest.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from carl.data.batches.base import Batch
from carl.data.batches.build import batches_for
from carl.data.batches.shuffled import ShuffledBatches
from carl.data.dataset import Dataset
from carl.device import hardware, pick_device
from carl.methods.build import build_method
from carl.precision import computing_in
from carl.records.environment import instruction_sets, machine
from carl.records.run_directory import RunDirectory
from carl.training.guard import Guard
from carl.training.learner import Learner
from carl.training.plan import PretrainRequest, plan

SIZE, BATCH = 32, 256
STEPS_PER_EPOCH = 10_000 // BATCH
WARM_UP = 5  # steps; two workers of a DataLoader have at most four batches ready

Steps = Callable[[], Iterator[None]]  # begins a training; each item is one step that has been taken


@dataclass(frozen=True)
class Ours:
    """What `carl pretrain shapes --method simclr` takes its steps with."""

    learner: Learner
    batches: ShuffledBatches
    guard: Guard
    dataset: Dataset


def make_ours(folder: Path, precision: str) -> Ours:
    layer = {
        "data": {"source": "shapes", "image_size": SIZE},
        "method": {"name": "simclr", "preset": "paper"},
        "optim": {"name": "sgd", "lr": 0.06},
        "train": {"batch_size": BATCH, "device": "cpu", "precision": precision},
    }
    planned = plan(PretrainRequest(layer))
    config, device = planned.config, pick_device("cpu")
    method = build_method(config, planned.facts, device)
    split = planned.dataset.pretraining
    batches = batches_for(split)(split, planned.views, BATCH, seed=config.train.seed, device=device)
    learner = Learner(config, method, device, config.train.epochs * batches.steps_per_epoch)
    return Ours(learner, batches, Guard(learner, batches, RunDirectory(folder)), planned.dataset)


def train(ours: Ours, batches: Iterator[Batch]) -> Iterator[None]:
    for batch in batches:
        metrics = ours.learner.take_step(batch)
        ours.guard.look(metrics["loss"], batch)
        yield


def carl_steps(ours: Ours) -> Steps:
    epochs = itertools.count()
    return lambda: train(ours, ours.batches.epoch(next(epochs)))


def floor_steps(ours: Ours) -> Steps:
    made = list(itertools.islice(ours.batches.epoch(0), 4))
    return lambda: train(ours, itertools.cycle(made))


class Pictures(torch.utils.data.Dataset[tuple[list[Tensor], int]]):
    """The same images as PIL pictures under lightly's transform."""

    def __init__(self, dataset: Dataset) -> None:
        from lightly.transforms.simclr_transform import SimCLRTransform
        from PIL import Image

        self.pictures = [Image.fromarray(pixels) for pixels in dataset.train.images.pixels]
        self.transform = SimCLRTransform(input_size=SIZE, gaussian_blur=0.0)

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[list[Tensor], int]:
        pair: list[Tensor] = self.transform(self.pictures[index])  # type: ignore[assignment]
        return pair, 0


def lightly_steps(dataset: Dataset, precision: str) -> Steps:
    import torchvision
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead

    torch.manual_seed(0)
    backbone = torchvision.models.resnet18()
    backbone.fc = nn.Identity()
    model = nn.Sequential(backbone, SimCLRProjectionHead(512, 512, 128))
    criterion, optimizer = NTXentLoss(), torch.optim.SGD(model.parameters(), lr=0.06)
    loader = torch.utils.data.DataLoader(Pictures(dataset), BATCH, shuffle=True, drop_last=True, num_workers=2)

    def begin() -> Iterator[None]:
        for (first, second), _ in loader:
            with computing_in(precision, "cpu"):
                loss = criterion(model(first), model(second))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield

    return begin


def speed(begin: Steps, steps: int) -> float:
    """Images a second of one turn."""
    training = begin()
    for _ in itertools.islice(training, min(WARM_UP, STEPS_PER_EPOCH - steps)):
        pass
    start = time.perf_counter()
    taken = sum(1 for _ in itertools.islice(training, steps))
    return taken * BATCH / (time.perf_counter() - start)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print medians as JSON, nothing else on stdout")
    parser.add_argument(
        "--steps", type=int, default=12, choices=range(1, STEPS_PER_EPOCH + 1), metavar="1..39", help="steps of a turn"
    )
    parser.add_argument("--repeats", type=int, default=3, help="turns of each side (default 3)")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (default 2)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")  # peers warn about their own dependencies
    with tempfile.TemporaryDirectory() as folder:
        sides: dict[str, Steps] = {}
        for precision, ending in (("fp32", ""), ("bf16", "_bf16")):
            ours = make_ours(Path(folder), precision)
            sides[f"carl{ending}"] = carl_steps(ours)
            sides[f"lightly{ending}"] = lightly_steps(ours.dataset, precision)
            sides[f"floor{ending}"] = floor_steps(ours)
        speeds: dict[str, list[float]] = {name: [] for name in sides}
        for repeat, (name, begin) in itertools.product(range(options.repeats), sides.items()):
            speeds[name].append(speed(begin, options.steps))
            print(f"turn {repeat + 1} of {options.repeats}: {name} {speeds[name][-1]:.0f} images/s", file=sys.stderr)
    medians = {name: round(statistics.median(values), 1) for name, values in speeds.items()}
    if options.json:
        print(json.dumps({**medians, "machine": machine(hardware(torch.device("cpu")))}, indent=2))
        return
    print(f"SimCLR, ResNet-18, {SIZE} px, batch {BATCH}, {options.steps} steps of the 39 of an epoch a turn")
    print("images/s, median (lowest - highest)")
    for name, values in speeds.items():
        print(f"  {name:12} {medians[name]:7.1f} ({min(values):.1f} - {max(values):.1f})")
    print(f"  instruction sets: {', '.join(instruction_sets()) or 'unknown'}")
    for side, peer in (("carl", "lightly"), ("carl_bf16", "lightly"), ("carl_bf16", "lightly_bf16")):
        print(f"  {side} is {medians[side] / medians[peer]:.2f} times as fast as {peer}")
    for ending in ("", "_bf16"):
        print(f"  carl{ending} takes {medians[f'floor{ending}'] / medians[f'carl{ending}']:.3f} times the floor's time")


if __name__ == "__main__":
    main()
