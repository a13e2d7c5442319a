"""What a training loop knows about its batches, whatever they are cut from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from carl.errors import UserError

WHOLE_IMAGES = 256  # read at once when all images are embedded


@dataclass(frozen=True)
class Batch:
    """Views of the same images, normalised, on the training device."""

    views: Sequence[Tensor]  # one (B, C, S, S) per view; with multi-crop, some are smaller
    indices: Tensor  # (B,) places of the images in the data set; with partners, of the first view
    labels: Tensor | None = None  # (B,)

    def part(self, rows: slice) -> Batch:
        labels = None if self.labels is None else self.labels[rows]
        return Batch([view[rows] for view in self.views], self.indices[rows], labels)


class TrainingBatches(Protocol):
    """The batches of this process: in a new order each epoch, with every image at most once over all processes.

    Everything is a function of (seed, epoch), so that an epoch can be resumed after any step.
    """

    device: torch.device

    @property
    def steps_per_epoch(self) -> int:
        """The same for any number of processes, so that a run can be resumed with another number."""

    def epoch(self, epoch: int, first_step: int = 0, partners: np.ndarray | None = None) -> Iterator[Batch]:
        """The batches of one epoch from `first_step` on; the next ones are read while one is in use.

        With `partners` (N,), all views except the first show the image at `partners[i]` instead of image i.
        """

    def whole_images(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The images of this process, some at a time: places (n,) and pixels (n, H, W, C) uint8.

        All processes together give every image once.
        """

    def names_of(self, indices: Sequence[int]) -> list[str] | None:
        """The names of the images at these places, if they have names."""

    def remarks(self) -> list[str]:
        """What the user should know after training; all processes must call this together."""


def check_batch_size(batch_size: int, images: int, drop_last: bool) -> None:
    """Refuse an epoch without any batch."""
    if images < 2:
        raise UserError(f"the data have {images} image; training needs at least 2, and is useful from a few hundred on")
    if batch_size > images and drop_last:
        raise UserError(
            f"batch size {batch_size} is larger than the data ({images} images); "
            f"use --batch-size {max(2, images // 4)} or less"
        )


def check_shares(batch_size: int, images: int, drop_last: bool, ranks: int) -> None:
    """Refuse batches that cannot be shared equally, with at least two images per process, which batch norm needs."""
    if batch_size % ranks:
        raise UserError(f"batch size {batch_size} does not divide over {ranks} processes; use a multiple of {ranks}")
    rest = images % batch_size
    if not drop_last and 2 <= rest < 2 * ranks:
        raise UserError(
            f"the last batch of an epoch, {rest} images, is too small for {ranks} processes; use at most {rest // 2}, "
            "another --batch-size, or leave train.drop_last at true"
        )


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """The values on the device; for CUDA without waiting, since pinned memory is kept until it is read."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)
