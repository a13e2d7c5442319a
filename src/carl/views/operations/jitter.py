"""Colour jitter: brightness, contrast, saturation and hue, in random order, with torchvision's formulas.

Functions whose name ends in an underscore change their input. They are written as few passes over planes: on
a CPU the passes over memory are the cost, and `where` on pixels is ten times dearer than an arithmetic pass.

Our own, because torchvision changes a whole batch alike, and kornia is several times slower (docs/speed.md).

Shapes: B samples, S side of the view; images are (B, 3, S, S) in [0, 1].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from carl.config import Probability
from carl.views.operations.greyscale import grey_level
from carl.views.operations.operation import Drawn, Operation

BRIGHTNESS, CONTRAST, SATURATION = range(3)  # what `blend_step_` does to a sample
HUE_SLOTS = 4  # hue comes before, between or after the three blends
STRONGEST = 100.0  # far below it all pixels are black or white, far above it numbers overflow
LARGEST_HUE = 0.5  # half a turn either way reaches every colour
Strength = Annotated[float, Field(ge=0, le=STRONGEST)]


@dataclass(frozen=True, eq=False)
class DrawnJitter(Drawn):
    """Where `chosen` is False, factors are 1 and hue is 0."""

    factors: Tensor  # (B, 3) of brightness, contrast, saturation
    blends: Tensor  # (B, 3) int64: which of these three comes first, second, third
    hue: Tensor  # (B,) turns
    hue_slot: Tensor  # (B,) int64 in 0..3: the number of blends before the hue shift


class Jitter(Operation):
    """Defaults from SimCLR, appendix A. A strength of s gives factors from 1 - s, but not below 0, to 1 + s."""

    jitter_strength: Strength = Field(
        1.0, description="Factor on the pipeline's colour jitter. The paper leaves the strength open."
    )
    jitter: Probability = Field(0.8, description="Probability of colour jitter.")
    brightness: Strength = Field(0.8, description="How far jitter changes brightness; 0.4 multiplies it by 0.6 to 1.4.")
    contrast: Strength = Field(0.8, description="How far jitter changes contrast.")
    saturation: Strength = Field(0.8, description="How far jitter changes saturation.")
    hue: float = Field(
        0.2, ge=0, le=LARGEST_HUE, description="Largest shift of the hue, in turns of the colour circle."
    )

    needs_colour: ClassVar[bool] = True
    places: ClassVar[tuple[int, ...]] = (23, 24, 25, 30, 31, 32)

    @property
    def probability(self) -> float:
        return self.jitter

    def with_options(self, given: Mapping[str, Any]) -> Jitter:
        """The factor multiplies the strengths from before; a strength that is given beside it stays as it is."""
        factor = super().with_options(given).jitter_strength
        scaled = {name: factor * getattr(self, name) for name in ("brightness", "contrast", "saturation")}
        scaled["hue"] = min(LARGEST_HUE, factor * self.hue)
        return super().with_options({**scaled, **given, "jitter_strength": 1.0})

    def details(self, size: int) -> str:
        strengths = f"brightness {self.brightness:g}, contrast {self.contrast:g}, saturation {self.saturation:g}"
        return f"{strengths}, hue {self.hue:g}"

    def draw(self, numbers: Sequence[Tensor], size: int) -> DrawnJitter:
        jitter, hue, code, *factors = numbers
        chosen = jitter < self.jitter

        def factor(number: Tensor, strength: float) -> Tensor:
            low = max(0.0, 1.0 - strength)
            return torch.where(chosen, low + (1.0 + strength - low) * number, 1.0)

        strengths = (self.brightness, self.contrast, self.saturation)
        order = torch.floor(code * 24).long()  # 6 orders of the blends, times 4 slots for the hue
        return DrawnJitter(
            chosen=chosen,
            factors=torch.stack([factor(n, s) for n, s in zip(factors, strengths, strict=True)], dim=1),
            blends=torch.stack(blend_order(order % 6), dim=1),
            hue=torch.where(chosen, self.hue * (2.0 * hue - 1.0), 0.0),
            hue_slot=order // 6,
        )

    def apply_masked(self, views: Tensor, drawn: DrawnJitter) -> Tensor:
        """In place and without a choice: the parameters of samples that are not jittered change nothing."""
        return self._jitter_(views, drawn, (slice(None),) * HUE_SLOTS)

    def apply_sorted_(self, views: Tensor, drawn: DrawnJitter) -> None:
        """Sorted by the slot of the hue shift, a sample needs one hue pass and not four."""
        ends = torch.bincount(drawn.hue_slot, minlength=HUE_SLOTS).cumsum(0).tolist()
        self._jitter_(views, drawn, [slice(start, stop) for start, stop in pairwise((0, *ends))])

    def sort_key(self, drawn: DrawnJitter) -> Tensor:
        return drawn.hue_slot

    def _jitter_(self, views: Tensor, drawn: DrawnJitter, slices: Sequence[slice]) -> Tensor:
        factors = drawn.factors.gather(1, drawn.blends)
        blends = list(zip(drawn.blends.unbind(1), factors.unbind(1), strict=True))
        return jitter_(views, blends, drawn.hue if self.hue > 0 else None, drawn.hue_slot, slices)


def _per_sample(values: Tensor) -> Tensor:
    return values[:, None, None, None]  # (B,) -> (B, 1, 1, 1)


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
