"""What choosing prototypes costs in an epoch, apart from the encoder: CARL's loss, SwAV's codes, PCL's k-means.

    python -m benchmarks.assignments [--json] [--images 50000] [--prototypes 100 1000 3000] [--repeats 9] [--threads 2]

Everything is in seconds for an epoch of so many images in batches of 256, with embeddings of 128 numbers. Of a step
only the loss is timed, forward and backward, from given embeddings; for SimCLR too, which has no prototypes. PCL also
clusters all images before each epoch; embedding them for that is `embedding`. `encoder` is what all of it comes on top
of: forward and backward of ResNet-18 on two views of each image of 32 px. The parts take turns; times are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from benchmarks.method_steps import make_method
from carl.data.batches import Batch
from carl.methods.base import Method
from carl.methods.carl import CARL
from carl.methods.pcl import PCL

BATCH, SIDE = 256, 32


def median_seconds(work: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in work}
    for repeat in range(repeats + 1):
        for name, part in work.items():
            start = time.perf_counter()
            part()
            if repeat > 0:  # the first makes buffers
                taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def loss_of(method: Method) -> Callable[[], object]:
    """Forward and backward from embeddings, as late in training, when PCL clusters and SwAV has its queue."""
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(2, BATCH, 128, generator=generator).requires_grad_()
    batch = Batch([], torch.arange(BATCH))

    def step() -> None:
        represented = embeddings
        if isinstance(method, CARL):
            represented = method.prototypes.by_part(embeddings.flatten(0, 1)).unflatten(0, (2, BATCH))
        loss, _ = method.objective(represented, batch, 0.9)
        loss.backward()

    return step


def encoder_of(method: Method, train: bool) -> Callable[[], object]:
    views = torch.randn(2 if train else 1, BATCH, 3, SIDE, SIDE)

    def step() -> None:
        with torch.set_grad_enabled(train):
            out = method.encoder(views.flatten(0, 1))
        if train:
            out.sum().backward()

    return step


def make_pcl(images: int, prototypes: int) -> PCL:
    """Three clusterings as in the paper, in the ratio of a quarter, a half and all of `prototypes`."""
    clusters = [max(2, prototypes // 4), max(2, prototypes // 2), prototypes]
    method = make_method({"method": {"name": "pcl", "preset": "paper", "clusters": clusters}}, images)
    assert isinstance(method, PCL)
    return method


def measure(images: int, prototypes: int, repeats: int) -> dict[str, float]:
    """Seconds of an epoch, by what takes them."""
    generator = torch.Generator().manual_seed(0)
    pcl = make_pcl(images, prototypes)
    embeddings = torch.nn.functional.normalize(torch.randn(images, 128, generator=generator))
    options = pcl.options
    fit = (options.iterations, options.restarts, options.temperature, options.smoothing)
    clustering = median_seconds(
        {"PCL, k-means": lambda: pcl.clusterings.fit(torch.arange(images), embeddings, 0, *fit)}, max(1, repeats // 4)
    )
    carl = make_method({"method": {"name": "carl", "preset": "paper", "prototypes": prototypes}}, images)
    swav = make_method({"method": {"name": "swav", "preset": "paper", "prototypes": prototypes}}, images)
    simclr = make_method({"method": {"name": "simclr", "preset": "paper"}}, images)
    steps = median_seconds(
        {
            "CARL, loss": loss_of(carl),
            "SwAV, codes and loss": loss_of(swav),
            "PCL, loss": loss_of(pcl),
            "SimCLR, loss": loss_of(simclr),
            "PCL, embedding": encoder_of(pcl.eval(), train=False),
            "encoder": encoder_of(carl.train(), train=True),
        },
        repeats,
    )
    return {**{name: seconds * images / BATCH for name, seconds in steps.items()}, **clustering}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--images", type=int, default=50_000, help="in an epoch")
    parser.add_argument(
        "--prototypes", type=int, nargs="+", default=[100, 1000, 3000], help="K, PCL's largest clustering"
    )
    parser.add_argument("--repeats", type=int, default=9, help="timed steps; of the clustering a quarter")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of torch")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    found: dict[str, dict[str, float]] = {}
    for count in options.prototypes:
        found[str(count)] = measure(options.images, count, options.repeats)
        if not options.json:
            for name, seconds in found[str(count)].items():
                share = 100 * seconds / found[str(count)]["encoder"]
                print(f"K = {count:>5}  {name:<22} {seconds:9.2f} s an epoch  {share:6.1f}% of the encoder's")
    if options.json:
        print(json.dumps({"images": options.images, "batch": BATCH, "seconds_an_epoch": found}, indent=2))


if __name__ == "__main__":
    main()
