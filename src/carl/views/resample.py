"""Crop, resize and flip with parameters per sample, without a loop over samples.

Linear resampling along one axis is a sparse matrix. Every image of a batch has its own, and no shape depends on
data: each line of the result is made from the few lines of the source that it needs.

Our own, because torchvision cuts one box out of a whole batch, and kornia is several times slower (docs/speed.md).

Shapes: B samples, C channels, H x W source, S side of the result, T taps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
