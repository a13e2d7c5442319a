"""The stream of batches: which images, in which order, as which views; a pure function of (seed, epoch)."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from carl.data.dataset import Split
from carl.errors import UserError
from carl.views.views import Views

# Two, so that no core waits for the last photo of a batch. Memory: three batches of crops, 77 MB each at 224 px.
PHOTO_BATCHES_AHEAD = 2


@dataclass(frozen=True)
class Batch:
    """Views of the same images, normalised, on the training device."""

    views: Sequence[Tensor]  # one (B, C, S, S) a view; multi-crop views may be smaller
    indices: Tensor  # (B,) places of the images in the data set
    labels: Tensor | None = None  # (B,)

    def part(self, rows: slice) -> Batch:
        labels = None if self.labels is None else self.labels[rows]
        return Batch([view[rows] for view in self.views], self.indices[rows], labels)


def check_batch_size(batch_size: int, images: int, drop_last: bool) -> None:
    """An epoch has at least one batch."""
    if images < 2:
        raise UserError(f"the data have {images} image; training needs at least 2, and is of use from some hundreds on")
    if batch_size > images and drop_last:
        raise UserError(
            f"batch size {batch_size} is larger than the data ({images} images); "
            f"use --batch-size {max(2, images // 4)} or less"
        )


def check_shares(batch_size: int, images: int, drop_last: bool, ranks: int) -> None:
    """Each process has as many images of a batch as any other, and two at least, which batch norm needs."""
    if batch_size % ranks:
        raise UserError(f"batch size {batch_size} does not divide over {ranks} processes; use a multiple of {ranks}")
    rest = images % batch_size
    if not drop_last and 2 <= rest < 2 * ranks:
        raise UserError(
            f"the last batch of an epoch, {rest} images, is too small for {ranks} processes; use at most {rest // 2}, "
            "another --batch-size, or leave train.drop_last at true"
        )


class BatchSource(Protocol):
    """Where a training loop gets its batches from."""

    device: torch.device

    @property
    def steps_per_epoch(self) -> int: ...

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]: ...


class Batches:
    """Training batches of this process: shuffled each epoch, every image at most once over all processes."""

    def __init__(
        self,
        split: Split,
        views: Views,
        batch_size: int,  # over all processes
        seed: int,
        device: torch.device,
        drop_last: bool = True,
        rank: int = 0,
        ranks: int = 1,
        equal_shares: bool = True,  # of every batch, as batch statistics need; else no image is left out for it
        smallest: int = 2,  # images that the last batch is kept for: one has no batch statistics
    ) -> None:
        check_batch_size(batch_size, len(split), drop_last)
        if equal_shares:
            check_shares(batch_size, len(split), drop_last, ranks)
        self.split, self.views, self.batch_size, self.seed, self.device = split, views, batch_size, seed, device
        self.drop_last, self.rank, self.ranks, self.equal_shares = drop_last, rank, ranks, equal_shares
        self.smallest = smallest

    @property
    def steps_per_epoch(self) -> int:
        """The same at any number of processes, so that a run can go on with another."""
        whole, rest = divmod(len(self.split), self.batch_size)
        return whole + int(not self.drop_last and rest >= self.smallest)

    def images_of_step(self, step: int) -> int:
        """How many images the batch of this step of an epoch has over all processes."""
        return min(self.batch_size, len(self.split) - step * self.batch_size)

    def order(self, epoch: int) -> np.ndarray:
        """Places of all images in the order of this epoch, the same in every process."""
        generator = torch.Generator().manual_seed(_order_seed(self.seed, epoch))
        return torch.randperm(len(self.split), generator=generator).numpy()

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """Batches of one epoch from `first_step` on; the next ones are read while the current is used."""
        order = self.order(epoch)
        steps = iter(range(first_step, self.steps_per_epoch))
        ahead = 1 if self.split.photos is None else PHOTO_BATCHES_AHEAD
        with ThreadPoolExecutor(max_workers=ahead, thread_name_prefix="read") as readers:
            waiting = deque(readers.submit(self._read, order, epoch, step) for step in islice(steps, ahead))
            try:
                while waiting:
                    pixels, indices = waiting.popleft().result()
                    waiting.extend(readers.submit(self._read, order, epoch, step) for step in islice(steps, 1))
                    yield self._batch(pixels, indices, epoch)
            finally:
                for reading in waiting:
                    reading.cancel()

    def _read(self, order: np.ndarray, epoch: int, step: int) -> tuple[list[Tensor], Tensor]:
        rows = order[step * self.batch_size : (step + 1) * self.batch_size]
        share = rows[self.rank :: self.ranks]
        rows = np.ascontiguousarray(share[: len(rows) // self.ranks] if self.equal_shares else share)
        pixels, indices = read_pixels(self.split, self.views, rows, epoch), torch.from_numpy(rows)
        if self.device.type == "cuda":
            pixels, indices = [part.pin_memory() for part in pixels], indices.pin_memory()
        return pixels, indices

    def _batch(self, pixels: list[Tensor], indices: Tensor, epoch: int) -> Batch:
        labels = None
        if self.split.labels is not None:
            labels = to_device(torch.from_numpy(self.split.labels[indices.numpy()]), self.device)
        pixels = [to_device(part, self.device) for part in pixels]
        indices = to_device(indices, self.device)
        return Batch(views_of_pixels(self.split, self.views, pixels, indices, epoch), indices, labels)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Values on the device; on CUDA, which keeps pinned memory until it is read, without waiting for it."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def read_pixels(split: Split, views: Views, rows: np.ndarray, epoch: int) -> list[Tensor]:
    """What the views of an epoch are made of: whole packed images, or a crop of each photo for each view."""
    if split.photos is None:
        return [torch.from_numpy(split.images.gather(rows))]
    boxes = views.boxes(torch.from_numpy(rows), epoch, torch.from_numpy(split.photos.sizes[rows]))
    crops = split.photos.crop(rows, boxes.numpy(), [recipe.size for recipe in views.recipes])
    return [torch.from_numpy(crop) for crop in crops]


def views_of_pixels(split: Split, views: Views, pixels: list[Tensor], indices: Tensor, epoch: int) -> list[Tensor]:
    """The views themselves, on the device of `pixels`."""
    return views(pixels[0], indices, epoch) if split.photos is None else views.finish(pixels, indices, epoch)


def make_views(split: Split, views: Views, rows: np.ndarray, epoch: int, device: torch.device) -> list[Tensor]:
    """The views of the images at `rows` as training sees them in this epoch, one (B, C, S, S) a view."""
    pixels = [part.to(device) for part in read_pixels(split, views, rows, epoch)]
    return views_of_pixels(split, views, pixels, torch.from_numpy(rows).to(device), epoch)


def _order_seed(seed: int, epoch: int) -> int:
    """A seed for each (seed, epoch), such that neighbouring seeds share no epoch's order."""
    digest = hashlib.sha256(f"order of epoch {epoch} of seed {seed}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
