"""Training step of ResNet-18 on a CPU: the plain timm model against the one adapted to tiny maps.

    python -m benchmarks.train_step [--json] [--sizes 32 64 96] [--small-sizes 32 64 96] [--repeats N]

One step is forward + backward + SGD on two views of 256 images (one forward of 512), of 64 images with the small
stem. The two models take turns in float32 and under bfloat16 autocast, so that whatever else the machine does meets all
four; times are medians, the spread is (maximum - minimum) / median. By default it takes minutes: the small stem, which
has 16 times the work for each image, is measured only at the sizes that `--small-sizes` names.

Differences are the largest over the output and every parameter's gradient, by norm. In float32 two ways to sum the same
numbers put some ReLU inputs that are within rounding of zero on different sides (`relu_flips` of the millions in a
step), and one such unit of the last stage is 1/sqrt(512 * 512) = 2e-3 of its gradient: `max_rel_diff_own_relus` is of
that size, and it is so too between the plain model and the plain model on channels-last images
(`plain_rel_diff_channels_last`). `max_rel_diff` therefore has each ReLU of ours pass what the plain model's passed: it
is the difference of the arithmetic. In float64 no ReLU is that near to zero.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import timm
import torch
from torch import Tensor, nn

from carl.device import hardware
from carl.memory import keep_freed_memory
from carl.models.tiny_maps import adapt_to_tiny_maps
from carl.precision import computing_in
from carl.records.environment import machine

IMAGES = 2 * 256
SMALL_STEM_IMAGES = 2 * 64  # the small stem has 16 times the work for each image


@dataclass(frozen=True)
class Comparison:
    """Times of the two models, and the largest norm-relative differences of outputs and gradients."""

    plain_ms: float
    carl_ms: float
    ratio: float
    plain_spread: float
    carl_spread: float
    plain_bf16_ms: float
    carl_bf16_ms: float
    bf16_ratio: float  # plain / ours, both in bfloat16
    bf16_gain: float  # ours in float32 / ours in bfloat16
    max_rel_diff: float  # with the ReLUs of the plain model
    max_rel_diff_own_relus: float
    relu_flips: int  # inputs of ReLUs that are positive in one model and not in the other
    plain_rel_diff_channels_last: float  # the plain model against itself on images in the other memory format
    max_rel_diff_float64: float


def make_resnet(stem: str) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model("resnet18", num_classes=0, zero_init_last=False)
    if stem == "small":
        model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    return model


def training_step(
    model: nn.Module, optimiser: torch.optim.Optimizer, images: Tensor, precision: str, clock: Callable[[], float]
) -> float:
    """Milliseconds of one step."""
    start = clock()
    optimiser.zero_grad()
    with computing_in(precision, "cpu"):
        output = model(images)
    output.float().square().mean().backward()
    optimiser.step()
    return 1000 * (clock() - start)


class Gate(nn.Module):
    """A ReLU that remembers what it passed, or that passes what another one did."""

    def __init__(self, like: Gate | None = None) -> None:
        super().__init__()
        self.like = like
        self.passed = torch.empty(0)

    def forward(self, input: Tensor) -> Tensor:
        self.passed = input > 0
        return input * (self.passed if self.like is None else self.like.passed)


def with_gates(model: nn.Module, like: Sequence[Gate] | None = None) -> tuple[nn.Module, list[Gate]]:
    """A copy whose ReLUs are gates, those of `like` deciding where it is given."""
    model = copy.deepcopy(model)
    gates: list[Gate] = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.ReLU):
                gates.append(Gate(None if like is None else like[len(gates)]))
                setattr(parent, name, gates[-1])
    return model, gates


def output_and_gradients(model: nn.Module, images: Tensor) -> list[Tensor]:
    output: Tensor = model(images)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    gradients = torch.autograd.grad((output * weights).mean(), list(model.parameters()))
    return [output.detach(), *gradients]


def largest_difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Largest norm-relative difference over the tensors."""
    return max(float((a - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True))


@dataclass(frozen=True)
class Differences:
    same_relus: float
    own_relus: float
    relu_flips: int
    plain_channels_last: float


def differences(plain: nn.Module, adapted: nn.Module, images: Tensor) -> Differences:
    """Our model against the plain one, and the plain one against itself in the other memory format."""
    gated_plain, gates = with_gates(plain)
    expected = output_and_gradients(gated_plain, images)
    gated, same_gates = with_gates(adapted, gates)
    same = largest_difference(output_and_gradients(gated, images), expected)
    own_model, own_gates = with_gates(adapted)
    own = largest_difference(output_and_gradients(own_model, images), expected)
    flips = sum(int((a.passed != b.passed).sum()) for a, b in zip(gates, own_gates, strict=True))
    assert len(same_gates) == len(gates) > 0
    other_format = images.contiguous(memory_format=torch.channels_last)
    turned = output_and_gradients(copy.deepcopy(plain), other_format)
    return Differences(same, own, flips, largest_difference(turned, expected))


def compare(stem: str, size: int, repeats: int, images_at_once: int | None, clock: Callable[[], float]) -> Comparison:
    count = images_at_once or (SMALL_STEM_IMAGES if stem == "small" else IMAGES)
    plain = make_resnet(stem)
    adapted = adapt_to_tiny_maps(copy.deepcopy(plain))
    images = torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))
    found = differences(plain, adapted, images if size <= 32 else images[:128])
    few = images[:128].double()
    exact = largest_difference(*(output_and_gradients(copy.deepcopy(m).double(), few) for m in (adapted, plain)))

    sides = list(itertools.product(("fp32", "bf16"), (plain, adapted)))
    optimisers = {
        model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
        for model in (plain, adapted)
    }
    times: list[list[float]] = [[] for _ in sides]
    for repeat in range(repeats + 1):
        for (precision, model), taken in zip(sides, times, strict=True):
            milliseconds = training_step(model, optimisers[model], images, precision, clock)
            if repeat > 0:  # the first step makes the buffers of the optimiser and of oneDNN
                taken.append(milliseconds)
    plain_ms, carl_ms, plain_bf16_ms, carl_bf16_ms = (statistics.median(taken) for taken in times)
    plain_spread, carl_spread = ((max(taken) - min(taken)) / statistics.median(taken) for taken in times[:2])
    return Comparison(
        plain_ms=plain_ms,
        carl_ms=carl_ms,
        ratio=plain_ms / carl_ms,
        plain_spread=plain_spread,
        carl_spread=carl_spread,
        plain_bf16_ms=plain_bf16_ms,
        carl_bf16_ms=carl_bf16_ms,
        bf16_ratio=plain_bf16_ms / carl_bf16_ms,
        bf16_gain=carl_ms / carl_bf16_ms,
        max_rel_diff=found.same_relus,
        max_rel_diff_own_relus=found.own_relus,
        relu_flips=found.relu_flips,
        plain_rel_diff_channels_last=found.plain_channels_last,
        max_rel_diff_float64=exact,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Training step of ResNet-18 on a CPU: the plain model against the adapted one.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 64, 96], help="image sizes in pixels")
    parser.add_argument("--small-sizes", type=int, nargs="*", default=[], help="the same with the small stem")
    parser.add_argument("--repeats", type=int, default=3, help="timed steps; more on a busy machine")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of torch")
    parser.add_argument("--images", type=int, help="images in a step; fewer are quicker (unset: 512, small stem 128)")
    parser.add_argument(
        "--processor-time", action="store_true", help="not the clock; with --threads 1, for a machine that is not free"
    )
    options = parser.parse_args(arguments)
    clock = time.process_time if options.processor_time else time.perf_counter
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as training does; the plain model has the same

    cases = [("imagenet", size) for size in options.sizes]
    cases += [("small", size) for size in options.small_sizes]
    results: dict[str, Comparison] = {}
    for stem, size in cases:
        name = str(size) if stem == "imagenet" else f"{size}-{stem}"
        results[name] = found = compare(stem, size, options.repeats, options.images, clock)
        if not options.json:
            print(
                f"{name:>9}: plain {found.plain_ms:7.0f} ms (spread {found.plain_spread:.0%}), "
                f"carl {found.carl_ms:7.0f} ms (spread {found.carl_spread:.0%}), "
                f"ratio {found.ratio:.2f}; bfloat16: plain {found.plain_bf16_ms:.0f} ms, "
                f"carl {found.carl_bf16_ms:.0f} ms, {found.bf16_gain:.2f} times as fast as carl in float32; "
                f"difference {found.max_rel_diff:.1e} with the same ReLUs, "
                f"{found.max_rel_diff_own_relus:.1e} with {found.relu_flips} flipped, "
                f"{found.max_rel_diff_float64:.1e} in float64",
                flush=True,
            )
    if options.json:
        print(
            json.dumps(
                {"machine": machine(hardware(torch.device("cpu"))), **{n: vars(f) for n, f in results.items()}},
                indent=2,
            )
        )


if __name__ == "__main__":
    main()
