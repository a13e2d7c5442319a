"""Views cut from images that are not packed on this machine, but read from shards as training goes.

In each epoch the shards are put in a random order, and their images form one long line. The line is cut into lanes of
equal length. A batch takes the same number of images from each lane, and a buffer mixes neighbours within a lane. Each
process reads some of the lanes. Everything is a function of (seed, epoch) and does not depend on who reads a lane, so a
run can be resumed after any step, with any number of processes that divides the number of lanes. Our own,
because WebDataset neither resumes within an epoch nor gives the same batches to another number of processes.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from carl import distributed
from carl.data.batches.base import WHOLE_IMAGES, Batch, check_batch_size, to_device
from carl.data.decoding.crop import crop_encoded, encoded_size, pool
from carl.data.decoding.decode import DecodeError, decode
from carl.data.listing import Unusable
from carl.data.packing.pack import bad_limit
from carl.data.sources.shards import NOT_READ, Shards
from carl.defaults import LANES
from carl.errors import UserError
from carl.views.views import Views

BATCHES_AHEAD = 2

Sample = tuple[int, bytes | None]  # the number of an image, and its encoded bytes


def choose_lanes(batch_size: int, shards: int, ranks: int) -> int:
    """The most lanes that divide the batch and are a multiple of `ranks`: at most LANES, or one per shard."""
    most = max(ranks, min(LANES, shards))  # a lane is an open file, and a batch mixes this many shards
    return max(lanes for lanes in range(1, most + 1) if batch_size % lanes == 0 and lanes % ranks == 0)


def check_lanes(lanes: int, batch_size: int, ranks: int) -> None:
    if batch_size % lanes:
        raise UserError(f"data.lanes={lanes} does not divide the batch size {batch_size}; use a divisor")
    if lanes % ranks:
        fitting = [count for count in range(1, lanes + 1) if lanes % count == 0]
        raise UserError(
            f"the stream has {lanes} lanes, which do not divide over {ranks} processes; use {fitting} processes, or "
            "another data.lanes in a new run"
        )


def buffered_order(count: int, buffer: int, seed: int) -> np.ndarray:
    """0 to count - 1, in the order in which a buffer gives them out that is filled in order and emptied at random."""
    generator = np.random.Generator(np.random.PCG64(seed))
    held = list(range(min(buffer, count)))
    order = []
    for following, draw in zip(range(len(held), count), generator.random(max(0, count - len(held))), strict=True):
        place = int(draw * len(held))
        order.append(held[place])
        held[place] = following
    return np.array([*order, *generator.permutation(held)], dtype=np.int64)


def _seed(*parts: int | str) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "little")


class Line:
    """All images of an epoch in one line, shard after shard."""

    def __init__(self, shards: Shards, seed: int, epoch: int) -> None:
        self.shards, self.seed, self.epoch = shards, seed, epoch
        generator = np.random.Generator(np.random.PCG64(_seed("order of shards", seed, epoch)))
        self.order = generator.permutation(len(shards))
        self.starts = np.cumsum([0, *np.array(shards.counts)[self.order]])

    def lane(self, number: int, lanes: int, buffer: int, first: int) -> Lane:
        """One of `lanes` equal parts of the line, mixed by a buffer, without its `first` images."""
        begin, end = (place * self.shards.images // lanes for place in (number, number + 1))
        seed = _seed("order in lane", self.seed, self.epoch, number)
        return Lane(self, begin + buffered_order(end - begin, buffer, seed)[first:])


class Lane:
    """Reads the images at `positions` of the line, each when its turn comes.

    Shards are read forwards. An image that is read before its turn waits; no more wait than the buffer holds.
    """

    def __init__(self, line: Line, positions: np.ndarray) -> None:
        self._line = line
        self._turns = iter(positions.tolist())
        self._waiting: dict[int, Sample] = {}
        self._source = self._read(np.sort(positions))

    def _read(self, positions: np.ndarray) -> Iterator[tuple[int, Sample]]:
        line = self._line
        numbers = np.searchsorted(line.starts, positions, side="right") - 1
        for number in np.unique(numbers):
            shard, begin = int(line.order[number]), int(line.starts[number])
            for place, content in line.shards.read(shard, positions[numbers == number] - begin):
                yield begin + place, (int(line.shards.starts[shard]) + place, content)

    def take(self, count: int) -> list[Sample]:
        """The next `count` images."""
        taken = []
        for position in islice(self._turns, count):
            while position not in self._waiting:
                found, sample = next(self._source)
                self._waiting[found] = sample
            taken.append(self._waiting.pop(position))
        return taken


class StreamBatches:
    """Training batches of this process from shards: every image at most once per epoch over all processes."""

    def __init__(
        self,
        shards: Shards,
        views: Views,
        batch_size: int,  # over all processes
        *,
        seed: int,
        device: torch.device,
        lanes: int,
        buffer: int,  # images that wait, in all lanes together
        whole_size: tuple[int, int],  # height and width that whole images are scaled to
        max_bad: int | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        check_batch_size(batch_size, shards.images, drop_last=True)
        check_lanes(lanes, batch_size, ranks)
        self.shards, self.views, self.batch_size, self.seed, self.device = shards, views, batch_size, seed, device
        self.lanes, self.buffer, self.rank, self.ranks = lanes, max(1, buffer // lanes), rank, ranks
        self.whole_size = whole_size
        most = bad_limit(shards.images, max_bad)
        self.max_bad = -(-most // ranks)  # of this process's share
        self.bad: dict[int, str] = {}  # images that could not be decoded, and why

    @property
    def steps_per_epoch(self) -> int:
        return self.shards.images // self.batch_size

    def epoch(self, epoch: int, first_step: int = 0, partners: np.ndarray | None = None) -> Iterator[Batch]:
        assert partners is None, "the images of a stream are read in the order of their shards"
        line, each = Line(self.shards, self.seed, epoch), self.batch_size // self.lanes
        own = range(self.rank, self.lanes, self.ranks)
        lanes = [line.lane(number, self.lanes, self.buffer, first_step * each) for number in own]
        steps = range(first_step, self.steps_per_epoch)
        with ThreadPoolExecutor(len(lanes)) as readers, ThreadPoolExecutor(1) as ahead:
            turns = iter(steps)
            waiting: deque[Future[tuple[list[Tensor], Tensor]]] = deque()
            try:
                for _ in steps:
                    while len(waiting) <= BATCHES_AHEAD and next(turns, None) is not None:
                        waiting.append(ahead.submit(self._read, lanes, each, readers, epoch))
                    crops, indices = waiting.popleft().result()
                    yield self._batch(crops, indices, epoch)
            finally:
                for reading in waiting:
                    reading.cancel()

    def _read(
        self, lanes: Sequence[Lane], each: int, readers: ThreadPoolExecutor, epoch: int
    ) -> tuple[list[Tensor], Tensor]:
        columns = list(readers.map(lambda lane: lane.take(each), lanes))
        samples = [column[row] for row in range(each) for column in columns]  # row i of process r is row i * ranks + r
        indices = torch.tensor([number for number, _ in samples])
        crops = [torch.from_numpy(crop) for crop in self._crops(samples, indices, epoch)]
        if self.device.type == "cuda":
            crops, indices = [crop.pin_memory() for crop in crops], indices.pin_memory()
        return crops, indices

    def _crops(self, samples: Sequence[Sample], indices: Tensor, epoch: int) -> list[np.ndarray]:
        """A crop for each view of each image; an image that cannot be decoded is replaced by another from the batch."""
        contents = [content for _, content in samples]
        sizes = list(pool().map(_size, contents))
        known = [(1, 1) if isinstance(size, str) else size for size in sizes]
        boxes = self.views.boxes(indices, epoch, torch.tensor(known)).numpy()
        crops = [np.empty((len(samples), r.size, r.size, 3), np.uint8) for r in self.views.recipes]

        def crop_row(row: int) -> str | None:
            size = sizes[row]
            return size if isinstance(size, str) else _crop(contents[row], boxes[row], crops, row)

        errors = list(pool().map(crop_row, range(len(samples))))
        good = [row for row, error in enumerate(errors) if error is None]
        for row, error in enumerate(errors):
            if error is not None:
                self._note_bad(samples[row][0], error, some_left=bool(good))
                for crop in crops:
                    crop[row] = crop[good[row % len(good)]]
        return crops

    def _note_bad(self, number: int, error: str, some_left: bool) -> None:
        self.bad[number] = error
        if len(self.bad) > self.max_bad or not some_left:
            where = self.shards.name_of(*self.shards.find(number))
            share = "" if self.ranks == 1 else f" of the {self.ranks} processes' shares"
            raise UserError(
                f"{len(self.bad)} images of the stream cannot be decoded, the last one {where} ({error}); "
                f"at most {self.max_bad}{share} may fail: repair the shards or raise data.max_bad"
            )

    def _batch(self, crops: list[Tensor], indices: Tensor, epoch: int) -> Batch:
        crops, indices = [to_device(crop, self.device) for crop in crops], to_device(indices, self.device)
        return Batch(self.views.finish(crops, indices, epoch), indices)

    def whole_images(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """In the order of the shards, which are mixed enough; an image that cannot be decoded is black."""
        share = np.array_split(np.arange(len(self.shards)), self.ranks)[self.rank]  # whole shards
        if not sum(self.shards.counts[shard] for shard in share):
            raise UserError(
                f"{len(self.shards)} shards are too few to give each process one when all images are embedded; "
                f"use at most {len(self.shards)} processes"
            )
        samples = (
            (int(self.shards.starts[shard]) + place, content)
            for shard in share
            for place, content in self.shards.read(int(shard), np.arange(self.shards.counts[shard]))
        )
        while part := list(islice(samples, WHOLE_IMAGES)):
            pixels = pool().map(lambda sample: _whole(sample[1], self.whole_size), part)
            yield np.array([number for number, _ in part]), np.stack(list(pixels))

    def names_of(self, indices: Sequence[int]) -> list[str]:
        return [self.shards.name_of(*self.shards.find(index)) for index in indices]

    def remarks(self) -> list[str]:
        bad = int(distributed.sum_over_processes(torch.tensor([len(self.bad)], device=self.device)))
        return [f"{bad} images of the stream could not be decoded; others took their places"] if bad else []


def _size(content: bytes | None) -> tuple[int, int] | str:
    """Height and width, or why they cannot be read."""
    if not content:
        return NOT_READ
    try:
        return encoded_size(content)
    except DecodeError as error:
        return str(error)


def _crop(content: bytes | None, boxes: np.ndarray, crops: list[np.ndarray], row: int) -> str | None:
    """Why an image could not be cropped, or None."""
    assert content
    try:
        crop_encoded(content, boxes, crops, row)
    except DecodeError as error:
        return str(error)
    return None


def _whole(content: bytes | None, shape: tuple[int, int]) -> np.ndarray:
    size = _size(content)
    try:
        return decode(Unusable(size) if isinstance(size, str) else content or b"", shape)
    except DecodeError:
        return np.zeros((*shape, 3), np.uint8)
