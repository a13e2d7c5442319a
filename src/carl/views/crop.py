"""The random crop that every view begins with, and its flip.

Shapes: B samples, N images, H x W source, C channels, S side of the view.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from carl.views.recipes import ViewRecipe
from carl.views.resample import crop_taps, resample

ATTEMPTS = 10  # torchvision.transforms.RandomResizedCrop.get_params
DRAWS = 2 * ATTEMPTS + 3  # random numbers for each sample

Side = int | Tensor  # height or width of all images, or (B,) float32 of each


@dataclass(frozen=True, eq=False)
class Crops:
    """The crop that was drawn for one view of each sample, in whole pixels; (B,) int64 unless noted."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    mirrored: Tensor  # bool

    def take(self, rows: Tensor) -> Crops:
        """The crops of the samples at `rows`, in their order."""
        return Crops(*(getattr(self, field.name)[rows] for field in fields(self)))


def draw_crops(recipe: ViewRecipe, numbers: Tensor, height: Side, width: Side) -> Crops:
    """Crops from random numbers (DRAWS, B) in [0, 1), as torchvision's RandomResizedCrop draws them.

    Area and the logarithm of the aspect are uniform; the first of ten candidates that fits is taken, and a
    central crop of the nearest possible aspect where none does. All candidates are computed, so no control flow
    depends on them.
    """
    areas, aspects = numbers[:ATTEMPTS], numbers[ATTEMPTS : 2 * ATTEMPTS]  # (attempts, B)
    across, down, flip = numbers[2 * ATTEMPTS : DRAWS]
    mirrored = flip < recipe.flip
    if recipe.crop_area is None:
        whole = [(torch.zeros_like(across) + side).long() for side in (height, width)]
        seen = [(recipe.centre * side).round().clamp(min=1).long() for side in whole]
        top, left = ((side - part) // 2 for side, part in zip(whole, seen, strict=True))
        return Crops(top, left, seen[0], seen[1], mirrored)
    (least, most), (narrow, wide) = recipe.crop_area, recipe.crop_aspect
    area = (least + (most - least) * areas) * (height * width)
    aspect = torch.exp(math.log(narrow) + (math.log(wide) - math.log(narrow)) * aspects)
    widths, heights = torch.sqrt(area * aspect).round(), torch.sqrt(area / aspect).round()
    fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
    preference = torch.arange(len(areas), 0, -1, device=fits.device)[:, None]  # first candidate highest: no ties
    chosen = (fits * preference).argmax(dim=0, keepdim=True)
    found = fits.any(dim=0)
    fallback_width = _rounded(height * wide, width)
    fallback_height = _rounded(width / narrow, height)
    w = torch.where(found, widths.gather(0, chosen)[0], fallback_width)
    h = torch.where(found, heights.gather(0, chosen)[0], fallback_height)
    top = torch.where(found, torch.floor(down * (height - h + 1)), (height - fallback_height) // 2)
    left = torch.where(found, torch.floor(across * (width - w + 1)), (width - fallback_width) // 2)
    return Crops(top.long(), left.long(), h.long(), w.long(), mirrored)


def _rounded(side: float | Tensor, most: Side) -> Side:
    if isinstance(side, Tensor):
        return torch.minimum(torch.round(side), torch.as_tensor(most))
    return min(round(side), int(most))


Cut = Callable[[slice], Tensor]  # a part of the batch to crops (n, C, S, S) in [0, 1]
Cropper = Callable[[Tensor, Tensor, int, Crops], Cut]


def crop_and_flip(images: Tensor, places: Tensor, size: int, crops: Crops) -> Cut:
    """The crops that were drawn for the images at `places` (B,), out of whole images (N, H, W, C) uint8."""
    rows = crop_taps(crops.top, crops.height, images.shape[1], size)
    columns = crop_taps(crops.left, crops.width, images.shape[2], size, crops.mirrored)
    return lambda part: resample(images, places[part], rows[part], columns[part])


def only_flip(images: Tensor, places: Tensor, size: int, crops: Crops) -> Cut:
    """The same for images that are crops of the view's side already."""

    def cut(part: slice) -> Tensor:
        pixels = images.index_select(0, places[part])
        pixels = torch.where(crops.mirrored[part, None, None, None], pixels.flip(2), pixels)
        return pixels.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format).mul_(1 / 255)

    return cut
