"""Views cut from photos: decoded and cropped on all cores when a batch needs them.

After the crop, they go through the same batched pipeline as packed images.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from carl.data.batches.shuffled import ShuffledBatches
from carl.data.dataset import Split
from carl.views.views import Views


class PhotoBatches(ShuffledBatches):
    # Two, so that no core waits for the last photo of a batch. They take 77 MB each at 224 pixels.
    ahead: ClassVar[int] = 2

    @staticmethod
    def read_pixels(split: Split, views: Views, rows: np.ndarray, epoch: int) -> list[Tensor]:
        """A crop of each photo for each view."""
        assert split.photos is not None
        boxes = views.boxes(torch.from_numpy(rows), epoch, torch.from_numpy(split.photos.sizes[rows]))
        crops = split.photos.crop(rows, boxes.numpy(), [recipe.size for recipe in views.recipes])
        return [torch.from_numpy(crop) for crop in crops]

    @staticmethod
    def views_of(views: Views, pixels: list[Tensor], indices: Tensor, epoch: int) -> list[Tensor]:
        return views.finish(pixels, indices, epoch)
