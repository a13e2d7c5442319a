"""Training step of ResNet-18 on a CPU: the plain timm model against the one adapted to tiny maps.

    python -m benchmarks.train_step [--json] [--sizes 32 64 96] [--repeats N]

One step is forward + backward + SGD on two views of 256 images (one forward of 512), of 64 images with the small
stem. The two models take turns, so that whatever else the machine does meets both; times are medians, the spread is
(maximum - minimum) / median.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import timm
import torch
from torch import Tensor, nn

from carl.models.tiny_maps import adapt_to_tiny_maps

IMAGES = 2 * 256
SMALL_STEM_IMAGES = 2 * 64  # the small stem has 16 times the work for each image
SMALL_STEM_SIZES = (32,)


@dataclass(frozen=True)
class Comparison:
    """Times of the two models, and the largest norm-relative difference of outputs and gradients."""

    plain_ms: float
    carl_ms: float
    ratio: float
    plain_spread: float
    carl_spread: float
    max_rel_diff: float
    max_rel_diff_float64: float


def make_resnet(stem: str) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model("resnet18", num_classes=0, zero_init_last=False)
    if stem == "small":
        model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    return model


def training_step(model: nn.Module, optimiser: torch.optim.Optimizer, images: Tensor) -> float:
    """Milliseconds of one step."""
    start = time.perf_counter()
    optimiser.zero_grad()
    model(images).square().mean().backward()
    optimiser.step()
    return 1000 * (time.perf_counter() - start)


def largest_difference(plain: nn.Module, adapted: nn.Module, images: Tensor) -> float:
    """Largest norm-relative difference over the output and every parameter's gradient."""
    found: list[list[Tensor]] = []
    for model in (plain, adapted):
        output = model(images)
        weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
        gradients = torch.autograd.grad((output * weights).mean(), list(model.parameters()))
        found.append([output.detach(), *gradients])
    return max(float((a - b).norm() / a.norm()) for a, b in zip(*found, strict=True))


def compare(stem: str, size: int, repeats: int) -> Comparison:
    count = SMALL_STEM_IMAGES if stem == "small" else IMAGES
    plain = make_resnet(stem)
    adapted = adapt_to_tiny_maps(copy.deepcopy(plain))
    images = torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))
    difference = largest_difference(plain, adapted, images)
    # In float32 one ReLU within rounding of zero moves gradients by 1e-2 (so does the memory format of the images
    # in the plain model); float64 tells that error from a wrong formula.
    few = images[:32].double()
    exact = largest_difference(copy.deepcopy(plain).double(), copy.deepcopy(adapted).double(), few)

    models = (plain, adapted)
    optimisers = [torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4) for m in models]
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats + 1):
        for model, optimiser, taken in zip(models, optimisers, times, strict=True):
            milliseconds = training_step(model, optimiser, images)
            if repeat > 0:  # the first step makes the buffers of the optimiser and of oneDNN
                taken.append(milliseconds)
    plain_ms, carl_ms = (statistics.median(taken) for taken in times)
    plain_spread, carl_spread = ((max(taken) - min(taken)) / statistics.median(taken) for taken in times)
    return Comparison(plain_ms, carl_ms, plain_ms / carl_ms, plain_spread, carl_spread, difference, exact)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Training step of ResNet-18 on a CPU: the plain model against the adapted one.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 64, 96], help="image sizes in pixels")
    parser.add_argument("--repeats", type=int, default=5, help="timed steps; more on a busy machine")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of torch")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)

    cases = [("imagenet", size) for size in options.sizes]
    cases += [("small", size) for size in options.sizes if size in SMALL_STEM_SIZES]
    results: dict[str, Comparison] = {}
    for stem, size in cases:
        name = str(size) if stem == "imagenet" else f"{size}-{stem}"
        results[name] = found = compare(stem, size, options.repeats)
        if not options.json:
            print(
                f"{name:>9}: plain {found.plain_ms:7.0f} ms (spread {found.plain_spread:.0%}), "
                f"carl {found.carl_ms:7.0f} ms (spread {found.carl_spread:.0%}), "
                f"ratio {found.ratio:.2f}, difference {found.max_rel_diff:.1e} "
                f"(float64 {found.max_rel_diff_float64:.1e})",
                flush=True,
            )
    if options.json:
        print(json.dumps({name: vars(found) for name, found in results.items()}, indent=2))


if __name__ == "__main__":
    main()
