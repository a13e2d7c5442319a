"""Several processes on one machine: their speed against one process, and the bytes that each method sends a step.

    python -m benchmarks.processes [--json] [--rounds N] [--steps N]      two processes of one thread, one of two
    python -m benchmarks.processes --traffic [--json]                     bytes a step, counted and by formula

Speed: a step is CARL's, ResNet-18 on 256 images of 32 px, two views each, reading and augmentation included. The two
ways take turns, so that whatever else the machine does meets both; figures are medians over the rounds.

Traffic: every collective of a step is counted by the numbers that a process hands in (all-reduce) or gets out
(all-gather, broadcast), over two processes; docs/scaling.md says what that means on a network.
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
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.multiprocessing.spawn import spawn

from carl import distributed
from carl.config import Config, resolve
from carl.data.batches.packed import PackedBatches
from carl.data.dataset import PackedImages, Split
from carl.data.facts import DataFacts
from carl.methods import METHODS
from carl.methods.swav import SwavOptions
from carl.training.learner import Learner
from carl.views.recipes import pipeline
from carl.views.views import Views

IMAGES, SIZE, BATCH = 2048, 32, 256
FACTS = DataFacts(name="benchmark", images=IMAGES, channels=3, image_size=SIZE, classes=10)


def settings(name: str) -> Config:
    method = METHODS[name]
    layer = {"data": {"source": "benchmark", "image_size": SIZE}, "method": {"name": name}}
    return method.completed(resolve([method.preset("paper", FACTS), layer], method.Options))


def make_learner(name: str) -> tuple[Learner, PackedBatches]:
    torch.manual_seed(0)
    config = settings(name)
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, SIZE, SIZE, 3), np.uint8)
    split = Split(PackedImages(pixels), np.arange(IMAGES) % 10)
    views = Views(pipeline(config.views.pipeline, SIZE), (0.5,) * 3, (0.25,) * 3, seed=0)
    rank, ranks = distributed.rank(), distributed.world_size()
    batches = PackedBatches(split, views, BATCH, seed=0, device=torch.device("cpu"), rank=rank, ranks=ranks)
    steps = config.train.epochs * batches.steps_per_epoch
    return Learner(config, METHODS[name](config, FACTS), batches.device, steps), batches


def images_per_second(steps: int) -> float:
    """Of all processes, after a first step that makes the buffers."""
    learner, batches = make_learner("carl")
    source = (batch for epoch in range(steps) for batch in batches.epoch(epoch))
    learner.take_step(next(source))
    start = time.perf_counter()
    for _ in range(steps):
        learner.take_step(next(source))
    return steps * BATCH / (time.perf_counter() - start)


class Counter:
    """Counts what goes through torch's collectives inside a `with`."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}
        self._plain = dist.all_reduce, dist.all_gather, dist.broadcast
        self._gradients = False  # whether the reducer of the gradients is calling

    def __enter__(self) -> Counter:
        module: Any = dist
        module.all_reduce, module.all_gather, module.broadcast = self._all_reduce, self._all_gather, self._broadcast
        return self

    def __exit__(self, *_: object) -> None:
        module: Any = dist
        module.all_reduce, module.all_gather, module.broadcast = self._plain

    def _add(self, kind: str, tensors: Sequence[Tensor]) -> None:
        self.bytes[kind] = self.bytes.get(kind, 0) + sum(t.numel() * t.element_size() for t in tensors)

    def _all_reduce(self, tensor: Tensor, *rest: Any, **named: Any) -> Any:
        self._add("gradients" if self._gradients else "all_reduce", [tensor])
        return self._plain[0](tensor, *rest, **named)

    def _all_gather(self, parts: list[Tensor], *rest: Any, **named: Any) -> Any:
        self._add("all_gather", parts)
        return self._plain[1](parts, *rest, **named)

    def _broadcast(self, tensor: Tensor, *rest: Any, **named: Any) -> Any:
        self._add("broadcast", [tensor])
        return self._plain[2](tensor, *rest, **named)

    def reduce_gradients(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """What the reducer does by itself below Python, as a hook that is seen here."""
        self._gradients = True
        try:
            group: Any = dist.group.WORLD
            return allreduce_hook(group, bucket)
        finally:
            self._gradients = False


def count_traffic(name: str) -> dict[str, int]:
    """Bytes of one step of a method."""
    (learner, batches), counter = make_learner(name), Counter()
    learner.compute.register_comm_hook(None, lambda _, bucket: counter.reduce_gradients(bucket))
    with counter:
        learner.take_step(next(batches.epoch(0)))
    return counter.bytes


def expected_traffic(name: str) -> dict[str, int]:
    """The same on paper; N images, D = 128, K prototypes, 4 bytes a number."""
    config = settings(name)
    method = METHODS[name](config, FACTS)
    keys = 4 * BATCH * config.model.output_dim
    gradients = 4 * sum(p.numel() for p in method.parameters() if p.requires_grad)
    prototypes = 4 * (method.prototype_count(config) or 0)
    rounds = SwavOptions.of(config).iterations if name == "swav" else 0
    shuffled = 4 * BATCH * FACTS.channels * SIZE**2 + 2 * keys  # the images, their keys, and the keys for the queue
    others: dict[str, dict[str, int]] = {
        "carl": {"all_reduce": 3 * prototypes},  # highest, mean, and the gradient of the mean
        "simclr": {"all_gather": 2 * keys, "all_reduce": 2 * keys},  # both views, and back
        "moco": {"all_gather": shuffled, "broadcast": 8 * BATCH},  # and the order in which they are dealt
        "pcl": {"all_gather": shuffled, "broadcast": 8 * BATCH},
        "swav": {"all_reduce": 2 * rounds * 2 * prototypes, "all_gather": 2 * keys},  # two codes; two queues
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
        spawn(_enter, args=(ranks, threads, port, folder, work), nprocs=ranks)
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
                f"round {number + 1}: one process {one[-1]:.1f} images/s, two processes {two[-1]:.1f} images/s",
                flush=True,
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
        kinds = ("gradients", "all_reduce", "all_gather", "broadcast")
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
