"""Batches of images that are all at hand, in a new random order each epoch."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from carl.data.batches.base import WHOLE_IMAGES, Batch, check_batch_size, check_shares, to_device
from carl.data.dataset import Split
from carl.views.views import Views


class _Shown(NamedTuple):
    """Images whose pixels are read, and the views to make of them."""

    views: Views
    pixels: list[Tensor]
    indices: Tensor  # (B,)


class ShuffledBatches(ABC):
    """Training batches of this process from a split: shuffled each epoch, every image at most once over all processes.

    A subclass says what is read from the images and how views are made of it.
    """

    ahead: ClassVar[int] = 1  # batches that are prepared while another is in use

    def __init__(
        self,
        split: Split,
        views: Views,
        batch_size: int,  # over all processes
        *,
        seed: int,
        device: torch.device,
        drop_last: bool = True,
        rank: int = 0,
        ranks: int = 1,
        equal_shares: bool = True,  # of each batch for all processes, as batch statistics need
        smallest: int = 2,  # images in the last batch, or it is left out: one image has no batch statistics
    ) -> None:
        check_batch_size(batch_size, len(split), drop_last)
        if equal_shares:
            check_shares(batch_size, len(split), drop_last, ranks)
        self.split, self.views, self.batch_size, self.seed, self.device = split, views, batch_size, seed, device
        self.drop_last, self.rank, self.ranks, self.equal_shares = drop_last, rank, ranks, equal_shares
        self.smallest = smallest

    @staticmethod
    @abstractmethod
    def read_pixels(split: Split, views: Views, rows: np.ndarray, epoch: int) -> list[Tensor]:
        """The pixels from which the views of the images at `rows` are made in this epoch, on the CPU."""

    @staticmethod
    @abstractmethod
    def views_of(views: Views, pixels: list[Tensor], indices: Tensor, epoch: int) -> list[Tensor]:
        """The views themselves, on the device of `pixels`."""

    @property
    def steps_per_epoch(self) -> int:
        whole, rest = divmod(len(self.split), self.batch_size)
        return whole + int(not self.drop_last and rest >= self.smallest)

    def images_of_step(self, step: int) -> int:
        """How many images the batch of this step has over all processes."""
        return min(self.batch_size, len(self.split) - step * self.batch_size)

    def order(self, epoch: int) -> np.ndarray:
        """The places of all images in the order of this epoch, which is the same in every process."""
        generator = torch.Generator().manual_seed(_order_seed(self.seed, epoch))
        return torch.randperm(len(self.split), generator=generator).numpy()

    def epoch(self, epoch: int, first_step: int = 0, partners: np.ndarray | None = None) -> Iterator[Batch]:
        prepare = partial(self._prepare, partners=partners)
        order, threads = self.order(epoch), torch.get_num_threads()
        steps = iter(range(first_step, self.steps_per_epoch))
        with ThreadPoolExecutor(self.ahead, "prepare", torch.set_num_threads, (1,)) as preparers:
            waiting = deque(preparers.submit(prepare, order, epoch, step) for step in islice(steps, self.ahead))
            try:
                while waiting:
                    finish = waiting.popleft().result()
                    torch.set_num_threads(threads)  # threads that begin later have as many as were set last, anywhere
                    waiting.extend(preparers.submit(prepare, order, epoch, step) for step in islice(steps, 1))
                    yield finish()
            finally:
                for preparing in waiting:
                    preparing.cancel()

    def _prepare(self, order: np.ndarray, epoch: int, step: int, partners: np.ndarray | None) -> Callable[[], Batch]:
        """What can be done for a batch beside the step before it; calling the result does the rest.

        On a CPU that is everything, in one thread: a second team of threads would take the cores from the step's own.
        Other devices make the views themselves, between two steps.
        """
        rows = self._rows(order, step)
        if partners is None:
            shown = [self._read(self.views, rows, epoch)]
        else:
            first, others = self.views.parted()
            shown = [self._read(first, rows, epoch), self._read(others, partners[rows], epoch)]
        if self.device.type != "cpu":
            return partial(self._batch, shown, epoch)
        batch = self._batch(shown, epoch)
        return lambda: batch

    def _rows(self, order: np.ndarray, step: int) -> np.ndarray:
        """The places of the images that this process has in a step."""
        rows = order[step * self.batch_size : (step + 1) * self.batch_size]
        share = rows[self.rank :: self.ranks]
        return np.ascontiguousarray(share[: len(rows) // self.ranks] if self.equal_shares else share)

    def _read(self, views: Views, rows: np.ndarray, epoch: int) -> _Shown:
        pixels, indices = self.read_pixels(self.split, views, rows, epoch), torch.from_numpy(rows)
        if self.device.type == "cuda":
            pixels, indices = [part.pin_memory() for part in pixels], indices.pin_memory()
        return _Shown(views, pixels, indices)

    def _batch(self, shown: Sequence[_Shown], epoch: int) -> Batch:
        labels, rows = None, shown[0].indices
        if self.split.labels is not None:
            labels = to_device(torch.from_numpy(self.split.labels[rows.numpy()]), self.device)
        places = [to_device(part.indices, self.device) for part in shown]
        made: list[Tensor] = []
        for part, indices in zip(shown, places, strict=True):
            pixels = [to_device(pixels, self.device) for pixels in part.pixels]
            made += self.views_of(part.views, pixels, indices, epoch)
        return Batch(made, places[0], labels)

    def whole_images(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """In shuffled order, so that neighbours in the file do not end up in the same batch."""
        share = np.array_split(self.order(0), self.ranks)[self.rank]
        for start in range(0, len(share), WHOLE_IMAGES):
            rows = share[start : start + WHOLE_IMAGES]
            yield rows, self.split.images.gather(rows)

    def names_of(self, indices: Sequence[int]) -> list[str] | None:
        names = self.split.names
        return None if names is None else [names[index] for index in indices]

    def remarks(self) -> list[str]:
        return []


def _order_seed(seed: int, epoch: int) -> int:
    """A seed for each (seed, epoch), so that runs with neighbouring seeds never share an order."""
    digest = hashlib.sha256(f"order of epoch {epoch} of seed {seed}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
