"""Crop, resize, flip and blur with parameters per sample, without a loop over samples.

Linear resampling along one axis is a matrix, and a matrix per sample lets every image of a batch have its own
crop without a shape that depends on data. Along the columns it is used as that, a small matrix product per
image. Along the rows of a packed image it is cheaper to fetch the few source rows of each result row.

Shapes: B samples, C channels, H x W source, S side of the result, T taps.
"""

from __future__ import annotations

import torch
from torch import Tensor

OUT_OF_REACH = 1e6  # a place farther from every centre than any support


def crop_weights(start: Tensor, extent: Tensor, mirrored: Tensor, source: int, size: int) -> Tensor:
    """Matrices (B, size, source) that cut [start, start + extent) out of an axis and resize it to `size`.

    Exactly the weights of antialiased bilinear resampling with half-pixel centres, as in
    `torch.nn.functional.interpolate(crop, mode="bilinear", antialias=True)`: with scale = extent / size,

        w(i, j) = max(0, 1 - |j + 1/2 - scale (i + 1/2)| / max(scale, 1)), j in the crop, rows summing to one.

    A mirrored order of the rows is the flip, for free.
    """
    device = start.device
    centres = torch.arange(size, device=device, dtype=torch.float32) + 0.5  # (S,)
    centres = torch.where(mirrored[:, None], size - centres, centres)  # (B, S)
    scale = (extent.to(torch.float32) / size)[:, None]
    width = scale.clamp(min=1.0)
    pixels = torch.arange(source, device=device) - start[:, None]  # (B, H), relative to the crop
    inside = (pixels >= 0) & (pixels < extent[:, None])
    places = torch.where(inside, (pixels + 0.5) / width, OUT_OF_REACH)
    distance = places[:, None, :] - (centres * (scale / width))[:, :, None]  # (B, S, H)
    negative = distance.abs_().clamp_(max=1.0).sub_(1.0)  # the sign goes when the sum divides it
    return negative.div_(negative.sum(dim=2, keepdim=True))


def crop_taps(start: Tensor, extent: Tensor, source: int, size: int) -> tuple[Tensor, Tensor]:
    """The entries of `crop_weights` that can differ from zero: source pixels and weights, (T, B, size) each.

    T is bounded by the largest crop, the whole axis, so it does not depend on data: 2 if nothing is reduced.
    """
    taps = 2 if source <= size else 2 * -(-source // size) + 1
    centres = torch.arange(size, device=start.device, dtype=torch.float32) + 0.5
    scale = (extent.to(torch.float32) / size)[:, None]
    width = scale.clamp(min=1.0)
    centres = centres * scale  # (B, S), in pixels of the crop
    first = torch.floor(centres - width + 0.5).long()
    pixels = first + torch.arange(taps, device=start.device)[:, None, None]  # (T, B, S)
    inside = (pixels >= 0) & (pixels < extent[:, None])
    weights = (1.0 - (pixels + 0.5 - centres).abs() / width).clamp_(min=0.0) * inside
    pixels = (start[:, None] + pixels).clamp_(0, source - 1)  # those outside weigh nothing, yet must be readable
    return pixels, weights / weights.sum(dim=0)


def resample(images: Tensor, rows: tuple[Tensor, Tensor], columns: Tensor) -> Tensor:
    """Images (B, H, W, C) uint8 under the taps of rows and columns (B, S, W): (B, C, S, S) in [0, 1]."""
    batch, height, width, channels = images.shape
    pixels, weights = rows
    size = pixels.shape[2]
    lines = images.reshape(batch * height, width * channels)
    line = pixels + height * torch.arange(batch, device=images.device)[:, None]
    shares = (weights / 255).flatten(1)[:, :, None]  # (T, B S, 1)
    down = lines.index_select(0, line[0].flatten()).to(torch.float32).mul_(shares[0])
    for tap in range(1, len(pixels)):
        down.add_(lines.index_select(0, line[tap].flatten()).to(torch.float32).mul_(shares[tap]))
    planar = down.view(batch, size, width, channels).permute(0, 3, 1, 2).reshape(batch, channels * size, width)
    return torch.bmm(planar, columns.transpose(1, 2)).view(batch, channels, size, size)


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
    weights = (gaussian_kernels(sigma, len(reads)) @ reads).view(batch, size, size)
    across = torch.bmm(images.reshape(batch, channels * size, size), weights.transpose(1, 2))
    # One plane at a time: a product that broadcasts weights over channels would first copy them three times.
    for plane, result in zip(across.view(batch, channels, size, size).unbind(1), images.unbind(1), strict=True):
        torch.bmm(weights, plane, out=result)
    return images
