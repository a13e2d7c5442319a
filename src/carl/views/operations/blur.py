"""Gaussian blur with a sigma for each sample, without a loop over samples.

A blur along one axis is a sparse matrix. Every image of a batch has its own, and no shape depends on data. The views
are multiplied by the matrix, block by block along its diagonal.

Our own, because torchvision takes one sigma for a whole batch, and kornia is several times slower (docs/speed.md).

Shapes: B samples, C channels, S side of the view, T taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from carl.config import Probability
from carl.errors import UserError
from carl.views.operations.operation import Drawn, Operation

# Large views are blurred in blocks, both in pixels. At 224 px that is 2.2 times as fast as the whole matrix; at 96 px
# it is no faster (AMD EPYC, one thread, 2026-11-16).
BLUR_BLOCK = 32
BLUR_IN_BLOCKS_FROM = 128


@dataclass(frozen=True, eq=False)
class DrawnBlur(Drawn):
    sigma: Tensor  # (B,)
    reads: Tensor  # the kernel's `reflection`, the same for all samples and too costly to make for each chunk

    def take(self, rows: Tensor | slice) -> DrawnBlur:
        return DrawnBlur(self.chosen[rows], self.sigma[rows], self.reads)


class Blur(Operation):
    """Defaults from SimCLR, appendix A."""

    blur: Probability = Field(0.5, description="Probability of Gaussian blur.")
    blur_sigma: tuple[float, float] = Field(
        (0.1, 2.0), description="Smallest and largest width of the blur, in pixels."
    )
    blur_kernel: int | None = Field(  # as in SimCLR's code
        None, ge=3, description="Side of the blur kernel, odd. Unset: 10% of the view."
    )

    places: ClassVar[tuple[int, ...]] = (27, 28)

    @model_validator(mode="after")
    def _possible_blur(self) -> Blur:
        if not 0 < self.blur_sigma[0] <= self.blur_sigma[1]:
            raise ValueError(f"blur_sigma={self.blur_sigma} is not a range of positive sizes; put the smaller first")
        if self.blur_kernel is not None and self.blur_kernel % 2 == 0:
            raise ValueError(f"blur_kernel={self.blur_kernel} must be odd; use {self.blur_kernel + 1}")
        return self

    @property
    def probability(self) -> float:
        return self.blur

    def taps(self, size: int) -> int:
        """Side of the kernel for views of `size` pixels."""
        return self.blur_kernel or a_tenth(size)

    def check_side(self, size: int) -> None:
        if self.taps(size) >= 2 * size:
            raise UserError(
                f"blur_kernel={self.taps(size)} is too wide for views of {size} px; use an odd number below {2 * size}"
            )

    def details(self, size: int) -> str:
        low, high = self.blur_sigma
        return f"sigma {low:g} to {high:g}, {self.taps(size)} taps"

    def draw(self, numbers: Sequence[Tensor], size: int) -> DrawnBlur:
        chosen, sigma = numbers
        low, high = self.blur_sigma
        reads = reflection(self.taps(size), size, sigma.device)
        return DrawnBlur(chosen < self.blur, low + (high - low) * sigma, reads)

    def apply(self, views: Tensor, drawn: DrawnBlur) -> Tensor:
        return gaussian_blur(views, drawn.sigma, drawn.reads, out=torch.empty_like(views))

    def apply_sorted_(self, views: Tensor, drawn: DrawnBlur) -> None:
        gaussian_blur(views, drawn.sigma, drawn.reads, out=views)


def a_tenth(size: int) -> int:
    """Side of a kernel that is about a tenth of the view's, odd and at least 3."""
    return max(3, 2 * (size // 10 // 2) + 1)


def gaussian_kernels(sigma: Tensor, taps: int) -> Tensor:
    """Normalised Gaussian kernels (B, T), one per sigma (B,), sampled at whole pixels."""
    offsets = torch.arange(taps, device=sigma.device, dtype=torch.float32) - (taps - 1) / 2
    return torch.softmax(-0.5 * (offsets / sigma[:, None]) ** 2, dim=1)


def reflection(taps: int, size: int, device: torch.device) -> Tensor:
    """(T, S * S): 1 where tap t of output pixel i reads source pixel j, borders reflected.

    The edge pixel is not repeated, as in torch's "reflect" padding. A product with kernels (B, T) gives
    matrices (B, S * S) that blur an axis.
    """
    radius = taps // 2
    pixels = torch.arange(size, device=device)
    reached = torch.arange(-radius, radius + 1, device=device)[:, None] + pixels  # (T, S)
    reflected = (size - 1) - ((size - 1) - reached.abs()).abs()
    return (reflected[:, :, None] == pixels).to(torch.float32).flatten(1)


def gaussian_blur(images: Tensor, sigma: Tensor, reads: Tensor, out: Tensor) -> Tensor:
    """Images (B, C, S, S) blurred by sigma (B,), written to `out`, which may be the images themselves.

    `reads` is the kernel's `reflection`.
    """
    batch, channels, size, _ = images.shape
    radius = len(reads) // 2
    weights = (gaussian_kernels(sigma, len(reads)) @ reads).view(batch, size, size)
    block = size if size < BLUR_IN_BLOCKS_FROM else BLUR_BLOCK
    results = [slice(start, min(start + block, size)) for start in range(0, size, block)]
    sources = [slice(max(0, part.start - radius), min(size, part.stop + radius)) for part in results]
    bands = [weights[:, part, source] for part, source in zip(results, sources, strict=True)]
    lines = images.reshape(batch, channels * size, size)
    blocks = [torch.bmm(lines[:, :, source], band.mT) for source, band in zip(sources, bands, strict=True)]
    across = blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=2)
    planes = across.view(batch, channels, size, size)
    # One plane at a time: a product that broadcasts weights over channels would first copy them three times.
    for plane, result in zip(planes.unbind(1), out.unbind(1), strict=True):
        if len(bands) == 1:
            torch.bmm(weights, plane, out=result)
            continue
        for part, source, band in zip(results, sources, bands, strict=True):
            result[:, part] = torch.bmm(band, plane[:, source])
    return out
