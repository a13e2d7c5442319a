"""Several processes on one machine: their speed against one process, and the bytes that each method sends a step.

    python -m benchmarks.processes [--json] [--rounds N] [--steps N]      two processes of one thread, one of two
    python -m benchmarks.processes --traffic [--json]                     bytes a step, counted and by formula

Speed: a step is CARL's, ResNet-18 on 256 images of 32 px, two views each, reading and augmentation included. The two
ways take turns, so that whatever else the machine does meets both; figures are medians over the rounds.

Traffic: every collective of a step is counted by the numbers that a process hands in (all-reduce) or gets out
(all-gather), over two processes; docs/scaling.md says what that means on a network.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from carl import distributed
from carl.config import Config, resolve
from carl.data.batches import Batches
from carl.data.images import PackedImages, Split
from carl.data.views import Views, pipeline
from carl.methods import METHODS, DataFacts
from carl.training.loop import Trainer

IMAGES, SIZE, BATCH = 2048, 32, 256
FACTS = DataFacts(name="benchmark", images=IMAGES, channels=3, image_size=SIZE, classes=10)
MEGABYTE = 1e6


def settings(name: str) -> Config:
    method = METHODS[name]
    layer = {"data": {"source": "benchmark", "image_size": SIZE}, "method": {"name": name}}
    return method.completed(resolve([method.preset("paper", FACTS), layer], method.Options))


def make_trainer(name: str) -> Trainer:
    torch.manual_seed(0)
    config = settings(name)
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, SIZE, SIZE, 3), np.uint8)
    split = Split(PackedImages(pixels), np.arange(IMAGES) % 10)
    views = Views(pipeline(config.views.pipeline, SIZE), (0.5,) * 3, (0.25,) * 3, seed=0)
    rank, ranks = distributed.rank(), distributed.world_size()
    batches = Batches(split, views, BATCH, 0, torch.device("cpu"), rank=rank, ranks=ranks)
    unused: Any = None
    return Trainer(config, METHODS[name](config, FACTS), batches, unused, unused, unused, unused, "", unused)


def images_per_second(steps: int) -> float:
    """Of all processes, after a first step that makes the buffers."""
    trainer = make_trainer("carl")
    source = (batch for epoch in range(steps) for batch in trainer.batches.epoch(epoch))
    trainer._train_step(next(source))
    start = time.perf_counter()
    for _ in range(steps):
        trainer._train_step(next(source))
    return steps * BATCH / (time.perf_counter() - start)


class Counter:
    """Counts what goes through torch's collectives while it is installed."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}

    def add(self, kind: str, count: int) -> None:
        self.bytes[kind] = self.bytes.get(kind, 0) + count

    def install(self) -> None:
        plain_reduce, plain_gather = dist.all_reduce, dist.all_gather

        def all_reduce(tensor: Tensor, *rest: Any, **named: Any) -> Any:
            self.add("all_reduce", tensor.numel() * tensor.element_size())
            return plain_reduce(tensor, *rest, **named)

        def all_gather(parts: list[Tensor], tensor: Tensor, *rest: Any, **named: Any) -> Any:
            self.add("all_gather", sum(part.numel() * part.element_size() for part in parts))
            return plain_gather(parts, tensor, *rest, **named)

        dist.all_reduce, dist.all_gather = all_reduce, all_gather  # type: ignore[assignment]

    def hook(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """In place of the reducer's own all-reduce, which happens below Python."""
        self.add("gradients", bucket.buffer().numel() * bucket.buffer().element_size())
        work = dist.distributed_c10d.all_reduce  # counted above as a collective of its own otherwise
        self.bytes["all_reduce"] = self.bytes.get("all_reduce", 0) - bucket.buffer().numel() * 4
        future = work(bucket.buffer().div_(distributed.world_size()), async_op=True)
        assert future is not None
        return future.get_future().then(lambda done: done.value()[0])


def count_traffic(name: str) -> dict[str, int]:
    """Bytes of one step of a method."""
    trainer = make_trainer(name)
    trainer.method.before_epoch(0, lambda function: (torch.zeros(0), torch.zeros(0)))
    counter = Counter()
    trainer.compute.register_comm_hook(None, counter.hook)
    batch = next(iter(trainer.batches.epoch(0)))
    plain = dist.all_reduce, dist.all_gather
    counter.install()
    dist.distributed_c10d.all_reduce = dist.all_reduce
    trainer._train_step(batch)
    dist.all_reduce, dist.all_gather = plain
    dist.distributed_c10d.all_reduce = plain[0]
    return counter.bytes


def expected_traffic(name: str) -> dict[str, int]:
    """The same on paper; N images, D = 128, K prototypes, 4 bytes a number."""
    config = settings(name)
    method = METHODS[name](config, FACTS)
    keys = 4 * BATCH * config.model.output_dim
    gradients = 4 * sum(p.numel() for p in method.parameters() if p.requires_grad)
    prototypes = 4 * int(getattr(config.method, "prototypes", 0))
    rounds = int(getattr(config.method, "iterations", 0))
    shuffled = 4 * BATCH * FACTS.channels * SIZE**2 + 2 * keys  # the images, their keys, and the keys for the queue
    others: dict[str, dict[str, int]] = {
        "carl": {"all_reduce": 3 * prototypes},  # highest, mean, and the gradient of the mean
        "simclr": {"all_gather": 2 * keys, "all_reduce": 2 * keys},  # both views, and back
        "moco": {"all_gather": shuffled},
        "pcl": {"all_gather": shuffled},
        "swav": {"all_reduce": 2 * (4 + rounds * prototypes), "all_gather": 2 * keys},  # two codes; two queues
    }
    return {"gradients": gradients, **others.get(name, {})}


def _enter(rank: int, ranks: int, threads: int, port: int, folder: str, work: Callable[[], Any]) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(threads)
    distributed.start(torch.device("cpu"))
    result = work()
    distributed.stop()
    Path(folder, f"{rank}.json").write_text(json.dumps(result))


def in_processes(ranks: int, threads: int, work: Callable[[], Any]) -> Any:
    """What the first of so many processes finds."""
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        mp.spawn(_enter, args=(ranks, threads, port, folder, work), nprocs=ranks)
        return json.loads(Path(folder, "0.json").read_text())


class Speed:
    """`images_per_second` of a number of steps, as something that a process can be started with."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self) -> float:
        return images_per_second(self.steps)


def all_traffic() -> dict[str, dict[str, int]]:
    return {name: count_traffic(name) for name in METHODS}


def show_speed(rounds: int, steps: int, as_json: bool) -> None:
    one, two = [], []
    for number in range(rounds):
        one.append(in_processes(1, 2, Speed(steps)))
        two.append(in_processes(2, 1, Speed(steps)))
        if not as_json:
            print(
                f"round {number + 1}: one process {one[-1]:.1f} images/s, two processes {two[-1]:.1f} images/s", flush=True
            )
    ratio = statistics.median(two) / statistics.median(one)
    if as_json:
        print(json.dumps({"one_process": one, "two_processes": two, "ratio": ratio}, indent=2))
    else:
        print(f"two processes of one thread: {ratio:.2f} of one process with two threads")


def show_traffic(as_json: bool) -> None:
    measured = in_processes(2, 1, all_traffic)
    expected = {name: expected_traffic(name) for name in METHODS}
    if as_json:
        print(json.dumps({"measured": measured, "expected": expected}, indent=2))
        return
    print("bytes a step and process, counted (by formula)")
    for name, found in measured.items():
        kinds = ("gradients", "all_reduce", "all_gather")
        cells = [f"{kind} {found.get(kind, 0):,} ({expected[name].get(kind, 0):,})" for kind in kinds]
        print(f"{name:>10}: {', '.join(cells)}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Speed and traffic of several processes on one machine.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--traffic", action="store_true", help="count bytes instead of measuring speed")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=3, help="of both ways in turn")
    parser.add_argument("--steps", type=int, default=8, help="timed steps a round")
    options = parser.parse_args(arguments)
    if options.traffic:
        show_traffic(options.json)
    else:
        show_speed(options.rounds, options.steps, options.json)


if __name__ == "__main__":
    main()
