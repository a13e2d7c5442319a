"""Colour operations on batches (B, 3, S, S) in [0, 1], with the formulas of torchvision's tensor functions.

Functions whose name ends in an underscore change their input. They are written as few passes over planes: on
a CPU the passes over memory are the cost, and `where` on pixels is ten times dearer than an arithmetic pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

GREY_WEIGHTS = (0.2989, 0.587, 0.114)  # torchvision.transforms.functional.rgb_to_grayscale (ITU-R BT.601)
BRIGHTNESS, CONTRAST, SATURATION = range(3)  # what `blend_step_` does to a sample
HUE_SLOTS = 4  # hue comes before, between or after the three blends


def _per_sample(values: Tensor) -> Tensor:
    return values[:, None, None, None]  # (B,) -> (B, 1, 1, 1)


def grey_level(images: Tensor) -> Tensor:
    """Luma (B, 1, S, S)."""
    red, green, blue = GREY_WEIGHTS
    level = images[:, 0:1] * red
    return level.add_(images[:, 1:2], alpha=green).add_(images[:, 2:3], alpha=blue)


def greyscale(images: Tensor) -> Tensor:
    """All three channels replaced by the luma."""
    return grey_level(images).expand_as(images)


def solarise(images: Tensor, threshold: float) -> Tensor:
    """Values at or above the threshold inverted."""
    return torch.where(images >= threshold, 1.0 - images, images)


def blend_step_(images: Tensor, operation: Tensor, factor: Tensor) -> Tensor:
    """Brightness, contrast or saturation, whichever each sample's `operation` (B,) names.

    All three are clamp(f x + (1 - f) reference); the reference is black, the mean luma of the image or the
    luma of the pixel. One formula for all lets samples with different operations share every pass.
    """
    level = grey_level(images)
    mean = level.mean(dim=(1, 2, 3))
    rest = 1.0 - factor
    share, constant = rest * (operation == SATURATION), rest * (operation == CONTRAST) * mean
    torch.addcmul(_per_sample(constant), level, _per_sample(share), out=level)
    return torch.addcmul(level, images, _per_sample(factor), out=images).clamp_(0.0, 1.0)


def shift_hue_(images: Tensor, shift: Tensor) -> Tensor:
    """Hue turned by shift (B,), in turns; value and chroma of every pixel stay.

    With value V, least channel m, chroma C = V - m, p = (V - r) / C and d = (g - b) / C, the hue in sixths of
    a turn, from -3 to 3, is h = d + p (3 sign(d) - 2 d): where red is largest p = 0 and h = d; where it is
    least p = 1 and h is 3 - |d| on the side of d; in between |d| = 1 and |h| = 1 + p. No case distinction,
    hence no `where`. The way back, [.] being the clamp to [0, 1], is
    r = V - C [|h| - 1], g = m + C [|h + 1| - 1], b = m + C [|h - 1| - 1].
    """
    red, green, blue = images.unbind(dim=1)  # (B, S, S) views
    value = torch.maximum(red, green)
    torch.maximum(value, blue, out=value)
    least = torch.minimum(red, green)
    torch.minimum(least, blue, out=least)
    chroma = value - least
    scratch = chroma.clamp(min=1e-12)  # a grey pixel has d = p = 0 and keeps its colour
    share = (value - red).div_(scratch)
    hue = (green - blue).div_(scratch)
    half_turn = scratch.fill_(3.0).copysign_(hue)
    hue.addcmul_(share, half_turn.sub_(hue, alpha=2.0))
    hue.add_(6.0 * shift[:, None, None])
    hue.sub_(torch.mul(hue, 1 / 6, out=scratch).round_(), alpha=6.0)
    least.sub_(chroma)
    for channel, offset in ((green, 1.0), (blue, -1.0)):
        rise = torch.add(hue, offset, out=scratch).abs_().clamp_(1.0, 2.0)
        torch.addcmul(least, chroma, rise, out=channel)
    torch.addcmul(value, chroma, hue.abs_().sub_(1.0).clamp_(0.0, 1.0), value=-1.0, out=red)
    return images


def blend_order(code: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The operations of the three blend steps for code (B,) in 0..5: permutations of three, by arithmetic."""
    first = code // 2
    second = code % 2
    second = second + (second >= first)
    return first, second, 3 - first - second


def jitter_(
    images: Tensor,
    blends: Sequence[tuple[Tensor, Tensor]],
    hue: Tensor | None,
    hue_slot: Tensor,
    slices: Sequence[slice] = (slice(None),) * HUE_SLOTS,
) -> Tensor:
    """Three blend steps, each an (operation, factor) per sample, and a hue shift before step `hue_slot` (B,).

    `slices[k]` holds at least the samples whose hue comes at slot k: everything unless the caller has sorted
    the batch by slot, which spares three of the four hue passes.
    """
    for slot, part in enumerate(slices):
        if hue is not None and (part.stop is None or part.stop > part.start):
            shift_hue_(images[part], (hue * (hue_slot == slot))[part])
        if slot < len(blends):
            blend_step_(images, *blends[slot])
    return images
