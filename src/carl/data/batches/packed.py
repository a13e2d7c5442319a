"""Views cut from packed images: the images are copied from memory, and the training device does the rest."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from carl.data.batches.shuffled import ShuffledBatches
from carl.data.dataset import Split
from carl.views.views import Views


class PackedBatches(ShuffledBatches):
    @staticmethod
    def read_pixels(split: Split, views: Views, rows: np.ndarray, epoch: int) -> list[Tensor]:
        """The whole images."""
        return [torch.from_numpy(split.images.gather(rows))]

    @staticmethod
    def views_of(views: Views, pixels: list[Tensor], indices: Tensor, epoch: int) -> list[Tensor]:
        return views(pixels[0], indices, epoch)
