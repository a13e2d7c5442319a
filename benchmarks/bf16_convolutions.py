"""Are bfloat16 convolutions right on this CPU? Every shape that timm's common families use, against float32.

    python -m benchmarks.bf16_convolutions [--json] [--sizes 32 64 96 128 160 224] [--batch 4] [--adapted]

oneDNN once left parts of a weight gradient as the memory was: those of the taps of a kernel that meet no pixel. Such an
error shows only if the memory held something, so all memory is filled with NaN before each convolution (glibc's
M_PERTURB cannot do that; blocks of the size of each result are filled and freed). Output and gradients of input and
weight are compared with float32 by norm. Rounding alone gives up to about 0.01.

The shapes are those of models that run on `meta` tensors, which cost nothing. `--adapted` asks the convolutions that
`model.tiny_maps` makes of them, which is what training uses.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import timm
import torch
from torch import Tensor, nn

from carl.models.tiny_maps import adapt_to_tiny_maps
from carl.records.environment import instruction_sets, processor

MODELS = (
    "resnet18", "resnet34", "resnet50", "resnet18d", "resnet50d", "resnext50_32x4d", "wide_resnet50_2",
    "convnext_atto", "convnext_femto", "convnext_pico", "convnext_nano", "convnext_tiny",
    "efficientnet_b0", "efficientnet_b1", "efficientnet_b2", "efficientnet_b3", "efficientnet_lite0",
    "tf_efficientnet_lite0", "tf_efficientnet_b0", "mobilenetv2_100", "mobilenetv3_large_100",
)  # fmt: skip
SIZES = (32, 64, 96, 128, 160, 224)
TOLERANCE = 0.02  # by norm; half-precision sums of any order stay below it


class Shape(NamedTuple):
    """One convolution of one map."""

    channels: int
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    height: int
    width: int


def shapes_of(model: str, size: int) -> set[Shape]:
    """The convolutions of a model for images of `size` pixels; none if it cannot read such images."""
    found: set[Shape] = set()

    def note(conv: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(conv, nn.Conv2d)
        padding = conv.padding if isinstance(conv.padding, tuple) else (0, 0)
        height, width = inputs[0].shape[2:]
        if type(conv) is not nn.Conv2d:  # pads on its own, as TensorFlow does, then convolves without
            height, width = (
                max((-(-side // step) - 1) * step + kernel, side)
                for side, step, kernel in zip((height, width), conv.stride, conv.kernel_size, strict=True)
            )
        found.add(
            Shape(
                conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, padding,  # type: ignore[arg-type]
                conv.dilation, conv.groups, height, width,  # type: ignore[arg-type]
            )
        )  # fmt: skip

    with torch.device("meta"):
        made = timm.create_model(model, num_classes=0).eval()
        for part in made.modules():
            if isinstance(part, nn.Conv2d):
                part.register_forward_pre_hook(note)
        try:
            made(torch.empty(2, 3, size, size))
        except RuntimeError:
            return set()
    return found


def poison(*like: Tensor) -> None:
    """Leave NaN in the memory that the next results of these sizes will get."""
    blocks = [torch.full((value.numel(),), torch.nan, dtype=torch.bfloat16) for value in like for _ in range(3)]
    del blocks


def results(conv: nn.Conv2d, images: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Output, and gradients of the input and of the weight."""
    leaf = images.to(dtype).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        output = conv(leaf)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    weights = weights.contiguous(memory_format=torch.channels_last)
    if dtype == torch.bfloat16:
        poison(leaf, conv.weight, output)
    gradients = torch.autograd.grad(output, (leaf, conv.weight), weights)
    return [output.detach(), *gradients]


def difference(shape: Shape, batch: int, adapted: bool, channels_last: bool) -> dict[str, float]:
    """Norm-relative differences of bfloat16 from float32; NaN where there is garbage."""
    torch.manual_seed(0)
    conv = nn.Conv2d(*shape[:7], bias=False)
    images = torch.randn(batch, shape.channels, shape.height, shape.width)
    if channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    expected = results(conv, images, torch.float32)
    asked = nn.Sequential(conv)
    if adapted:
        adapt_to_tiny_maps(asked)
    found = results(conv, images, torch.bfloat16)
    return {
        name: float((a.float() - b).norm() / b.norm().clamp_min(1e-20))
        for name, a, b in zip(("output", "input", "weight"), found, expected, strict=True)
    }


def wrong_ones(shapes: Sequence[Shape], batch: int, adapted: bool) -> Iterator[tuple[Shape, bool, dict[str, float]]]:
    for shape in shapes:
        for channels_last in (False, True):
            found = difference(shape, batch, adapted, channels_last)
            if not all(value <= TOLERANCE for value in found.values()):  # NaN too
                yield shape, channels_last, found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="names of timm models")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="sides of images in pixels")
    parser.add_argument("--batch", type=int, default=4, help="images (default 4)")
    parser.add_argument("--adapted", action="store_true", help="the convolutions of model.tiny_maps")
    options = parser.parse_args(arguments)
    everything: set[Shape] = set()
    for model in options.models:
        for size in options.sizes:
            everything |= shapes_of(model, size)
    wrong = []
    for shape, channels_last, found in wrong_ones(sorted(everything), options.batch, options.adapted):
        wrong.append({**shape._asdict(), "channels_last": channels_last, **found})
        if not options.json:
            print(wrong[-1], flush=True)
    said = {
        "processor": processor(),
        "instruction_sets": instruction_sets(),
        "torch": torch.__version__,
        "batch": options.batch,
        "adapted": options.adapted,
        "models": options.models,
        "sizes": options.sizes,
        "shapes": len(everything),
        "wrong": wrong,
    }
    print(json.dumps(said, indent=2) if options.json else f"{len(everything)} shapes, {len(wrong)} wrong")


if __name__ == "__main__":
    main()
