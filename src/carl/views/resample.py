"""Crop, resize, flip and blur with parameters per sample, without a loop over samples.

Linear resampling along one axis is a sparse matrix. Every image of a batch has one of its own, and no shape depends
on data. A crop fetches the few source lines of each result line; a blur multiplies by the matrix, block by block
along its diagonal.

Shapes: B samples, C channels, H x W source, S side of the result, T taps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# A view of at least twice this side is blurred in blocks of so many pixels. At 224 px that is 2.2 times as fast as
# the whole matrix; at 96 px it is no faster (AMD EPYC, one thread, 2026-11-16).
BLUR_BLOCK = 32
BLUR_IN_BLOCKS_FROM = 128  # pixels


@dataclass(frozen=True, eq=False)
class Taps:
    """Linear resampling along one axis: each of S result pixels is a weighted sum of T source pixels."""

    pixels: Tensor  # (T, B, S) int64
    weights: Tensor  # (T, B, S)

    def __getitem__(self, part: slice) -> Taps:
        return Taps(self.pixels[:, part], self.weights[:, part])


def crop_taps(start: Tensor, extent: Tensor, source: int, size: int, mirrored: Tensor | None = None) -> Taps:
    """What cuts [start, start + extent) out of an axis of `source` pixels and resizes it to `size`.

    Exactly the weights of antialiased bilinear resampling with half-pixel centres, as in
    `torch.nn.functional.interpolate(crop, mode="bilinear", antialias=True)`: with scale = extent / size,

        w(i, j) = max(0, 1 - |j + 1/2 - scale (i + 1/2)| / max(scale, 1)), j in the crop, the sum over j being one.

    T is bounded by the largest crop, the whole axis, so it does not depend on data: 2 if nothing is reduced. A
    mirrored order of the result is the flip, for free.
    """
    taps = 2 if source <= size else 2 * -(-source // size) + 1
    centres = torch.arange(size, device=start.device, dtype=torch.float32) + 0.5  # (S,)
    if mirrored is not None:
        centres = torch.where(mirrored[:, None], size - centres, centres)  # (B, S)
    scale = (extent.to(torch.float32) / size)[:, None]
    width = scale.clamp(min=1.0)
    centres = centres * scale  # (B, S), in pixels of the crop
    first = torch.floor(centres - width + 0.5).long()
    pixels = first + torch.arange(taps, device=start.device)[:, None, None]  # (T, B, S)
    inside = (pixels >= 0) & (pixels < extent[:, None])
    weights = (1.0 - (pixels + 0.5 - centres).abs() / width).clamp_(min=0.0) * inside
    pixels = (start[:, None] + pixels).clamp_(0, source - 1)  # those outside weigh nothing, yet must be readable
    return Taps(pixels, weights / weights.sum(dim=0))


def resample(images: Tensor, places: Tensor, rows: Taps, columns: Taps) -> Tensor:
    """The images (N, H, W, C) uint8 at `places` (B,) under taps of rows and columns: (B, C, S, S) in [0, 1]."""
    count, height, width, channels = images.shape
    batch, size = rows.pixels.shape[1:]
    lines = images.reshape(count * height, width * channels)
    down = _weighted_lines(lines, rows.pixels + height * places[:, None], rows.weights / 255)
    # Columns lie together after a transposition, so that fetching one is a copy of memory too.
    lines = down.view(batch, size, width * channels).transpose(1, 2).reshape(batch * width, channels * size)
    place = torch.arange(batch, device=images.device)[:, None]
    across = _weighted_lines(lines, columns.pixels + width * place, columns.weights)  # (B S, C S)
    return across.view(batch, size, channels * size).transpose(1, 2).reshape(batch, channels, size, size)


def _weighted_lines(lines: Tensor, taken: Tensor, weights: Tensor) -> Tensor:
    """Sums (B S, L) of the lines (M, L) that are `taken`, (T, B, S), with their weights."""
    taken, weights = taken.flatten(1), weights.flatten(1)[:, :, None]
    total = lines.index_select(0, taken[0]).to(torch.float32).mul_(weights[0])
    for tap in range(1, len(taken)):
        total.addcmul_(lines.index_select(0, taken[tap]).to(torch.float32), weights[tap])
    return total


def gaussian_kernels(sigma: Tensor, taps: int) -> Tensor:
    """Normalised Gaussian kernels (B, taps), one per sigma (B,), sampled at whole pixels."""
    offsets = torch.arange(taps, device=sigma.device, dtype=torch.float32) - (taps - 1) / 2
    return torch.softmax(-0.5 * (offsets / sigma[:, None]) ** 2, dim=1)


def reflection(taps: int, size: int, device: torch.device) -> Tensor:
    """(taps, size * size): 1 where tap t of output pixel i reads source pixel j, borders reflected.

    The edge pixel is not repeated, as in torch's "reflect" padding. A product with kernels (B, taps) gives
    matrices (B, size * size) that blur an axis.
    """
    radius = taps // 2
    if radius >= size:
        raise ValueError(f"blur_kernel={taps} is too wide for a {size} px view; use at most {2 * size - 1}")
    pixels = torch.arange(size, device=device)
    reached = torch.arange(-radius, radius + 1, device=device)[:, None] + pixels  # (taps, S)
    reflected = (size - 1) - ((size - 1) - reached.abs()).abs()
    return (reflected[:, :, None] == pixels).to(torch.float32).flatten(1)


def gaussian_blur_(images: Tensor, sigma: Tensor, reads: Tensor) -> Tensor:
    """Images (B, C, S, S) blurred in place by sigma (B,); `reads` is the kernel's `reflection`."""
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
    for plane, result in zip(planes.unbind(1), images.unbind(1), strict=True):
        if len(bands) == 1:
            torch.bmm(weights, plane, out=result)
            continue
        for part, source, band in zip(results, sources, bands, strict=True):
            result[:, part] = torch.bmm(band, plane[:, source])
    return images
