"""What a training step costs with each method, beside SimCLR's: the same encoder, images and batch.

    python -m benchmarks.method_steps [--json] [--batches 64 256] [--repeats 9] [--threads 2]

A step is forward, backward and SGD on two views of a batch of 32-px images; making the views is not in it. The methods
take turns, so that a slow minute of the machine meets all; times are medians, and ratios are to SimCLR's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from carl.config import Layer, resolve
from carl.data.batches.base import Batch
from carl.data.facts import DataFacts
from carl.methods import find_method
from carl.methods.base import Method
from carl.methods.build import build_method

FACTS = DataFacts("photos", 10_000, 3, 32, 0)


def _carl(preset: str, **values: int) -> Layer:
    return {"method": {"name": "carl", "preset": preset, **values}}


CASES: Mapping[str, Layer] = {
    "simclr": {"method": {"name": "simclr", "preset": "paper", "head_norm": True}},
    "carl, paper, K = 100": _carl("paper", prototypes=100),
    "carl, paper, K = 1000": _carl("paper", prototypes=1000),
    "carl, robust, K = 30": _carl("robust", prototypes=30),
    "carl, robust, K = 128": _carl("robust"),
    "carl, robust, K = 300": _carl("robust", prototypes=300),
    "carl, robust, K = 1000": _carl("robust", prototypes=1000),
}


def make_method(layer: Layer, images: int = FACTS.images) -> Method:
    method, facts = find_method(layer["method"]["name"]), replace(FACTS, images=images)
    given: Layer = {"data": {"source": "photos", "image_size": facts.image_size}}
    config = resolve([given, method.preset(layer["method"]["preset"], facts), layer], method.Options)
    return build_method(method.completed(config), facts, torch.device("cpu"))


def measure(size: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of each step of each case."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, size, 3, FACTS.image_size, FACTS.image_size, generator=generator)
    batch = Batch(list(images), torch.arange(size))
    methods = {name: make_method(layer) for name, layer in CASES.items()}
    optimisers = {name: torch.optim.SGD(method.parameters(), lr=0.01, momentum=0.9) for name, method in methods.items()}
    taken: dict[str, list[float]] = {name: [] for name in CASES}
    for repeat in range(repeats + 1):
        for name, method in methods.items():
            start = time.perf_counter()
            optimisers[name].zero_grad()
            loss, _ = method(batch, 0.5)
            loss.backward()
            optimisers[name].step()
            if repeat > 0:  # the first step makes buffers
                taken[name].append(time.perf_counter() - start)
    return taken


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256], help="images in a batch")
    parser.add_argument("--repeats", type=int, default=9, help="timed steps")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of torch")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for size in options.batches:
        medians = {name: statistics.median(taken) for name, taken in measure(size, options.repeats).items()}
        found[str(size)] = {
            name: {"ms": round(1000 * seconds, 1), "ratio": round(seconds / medians["simclr"], 3)}
            for name, seconds in medians.items()
        }
        if not options.json:
            for name, one in found[str(size)].items():
                print(f"batch {size:>4}  {name:<24} {one['ms']:8.0f} ms  {one['ratio']:.2f} of SimCLR's")
    if options.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
