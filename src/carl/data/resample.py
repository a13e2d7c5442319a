"""Crop, resize, flip and blur as small matrix products, one pair per image.

Linear resampling along one axis is a matrix, and a matrix per sample lets every image of a batch have its own
crop without a loop or a shape that depends on data.

Shapes: B samples, C channels, H x W source, S side of the result.
"""

from __future__ import annotations

import torch
from torch import Tensor


def crop_weights(start: Tensor, extent: Tensor, mirrored: Tensor, source: int, size: int) -> Tensor:
    """Matrices (B, size, source) that cut [start, start + extent) out of an axis and resize it to `size`.

    Exactly the weights of antialiased bilinear resampling with half-pixel centres, as in
    `torch.nn.functional.interpolate(crop, mode="bilinear", antialias=True)`: with scale = extent / size,

        w(i, j) = max(0, 1 - |j + 1/2 - scale (i + 1/2)| / max(scale, 1)), j in the crop, rows summing to one.

    A mirrored row order is the flip, for free.
    """
    device = start.device
    centres = torch.arange(size, device=device, dtype=torch.float32) + 0.5  # (S,)
    centres = torch.where(mirrored[:, None], size - centres, centres)  # (B, S)
    scale = (extent.to(torch.float32) / size)[:, None]
    pixels = torch.arange(source, device=device) - start[:, None]  # (B, H), relative to the crop
    inside = ((pixels >= 0) & (pixels < extent[:, None])).to(torch.float32)[:, None, :]
    distance = (pixels.to(torch.float32) + 0.5)[:, None, :] - (centres * scale)[:, :, None]  # (B, S, H)
    weights = distance.abs_().div_(-scale.clamp(min=1.0)[:, :, None]).add_(1.0).clamp_(min=0.0).mul_(inside)
    return weights.div_(weights.sum(dim=2, keepdim=True))


def resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Images (B, H, W, C) uint8 under rows (B, S, H) and columns (B, S, W): (B, C, S, S) in [0, 1].

    Rows first: that product takes the packed layout as it is, and the planes are split after the crop.
    """
    batch, height, width, channels = images.shape
    size = rows.shape[1]
    packed = images.reshape(batch, height, width * channels).to(torch.float32)
    down = torch.bmm(rows / 255, packed).view(batch, size, width, channels)
    planar = down.permute(0, 3, 1, 2).reshape(batch, channels * size, width)
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


def gaussian_blur(images: Tensor, sigma: Tensor, reads: Tensor) -> Tensor:
    """Images (B, C, S, S) blurred by sigma (B,); `reads` is the `reflection` for the kernel's size."""
    batch, channels, size, _ = images.shape
    weights = (gaussian_kernels(sigma, len(reads)) @ reads).view(batch, size, size)
    across = torch.bmm(images.reshape(batch, channels * size, size), weights.transpose(1, 2))
    planes = [torch.bmm(weights, plane) for plane in across.view(batch, channels, size, size).unbind(1)]
    return torch.stack(planes, dim=1)
