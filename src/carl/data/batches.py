"""The stream of batches: which images, in which order, as which views; a pure function of (seed, epoch)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from carl.data.images import Split
from carl.data.views import Views
from carl.errors import UserError


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
    ) -> None:
        check_batch_size(batch_size, len(split), drop_last)
        if batch_size % ranks:
            raise UserError(
                f"batch size {batch_size} does not divide over {ranks} processes; use a multiple of {ranks}"
            )
        self.split, self.views, self.batch_size, self.seed, self.device = split, views, batch_size, seed, device
        self.drop_last, self.rank, self.ranks = drop_last, rank, ranks

    @property
    def steps_per_epoch(self) -> int:
        whole, rest = divmod(len(self.split), self.batch_size)
        # A last batch smaller than two images a process has no batch statistics.
        return whole + int(not self.drop_last and rest >= 2 * self.ranks)

    def order(self, epoch: int) -> np.ndarray:
        """Places of all images in the order of this epoch, the same in every process."""
        generator = torch.Generator().manual_seed(_order_seed(self.seed, epoch))
        return torch.randperm(len(self.split), generator=generator).numpy()

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """Batches of one epoch from `first_step` on; the next one is gathered while the current is used."""
        order = self.order(epoch)
        steps = range(first_step, self.steps_per_epoch)
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="gather") as reader:
            ahead = [reader.submit(self._gather, order, step) for step in steps[:1]]
            for step in steps:
                images, indices = ahead.pop().result()
                if step + 1 < self.steps_per_epoch:
                    ahead.append(reader.submit(self._gather, order, step + 1))
                yield self._batch(images, indices, epoch)

    def _gather(self, order: np.ndarray, step: int) -> tuple[Tensor, Tensor]:
        rows = order[step * self.batch_size : (step + 1) * self.batch_size]
        rows = rows[self.rank :: self.ranks][: len(rows) // self.ranks]
        images = torch.from_numpy(self.split.images.gather(rows))
        indices = torch.from_numpy(np.ascontiguousarray(rows))
        if self.device.type == "cuda":
            images, indices = images.pin_memory(), indices.pin_memory()
        return images, indices

    def _batch(self, images: Tensor, indices: Tensor, epoch: int) -> Batch:
        labels = None
        if self.split.labels is not None:
            labels = torch.from_numpy(self.split.labels[indices.numpy()]).to(self.device, non_blocking=True)
        images = images.to(self.device, non_blocking=True)
        indices = indices.to(self.device, non_blocking=True)
        return Batch(self.views(images, indices, epoch), indices, labels)


def _order_seed(seed: int, epoch: int) -> int:
    """A seed for each (seed, epoch), such that neighbouring seeds share no epoch's order."""
    digest = hashlib.sha256(f"order of epoch {epoch} of seed {seed}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
