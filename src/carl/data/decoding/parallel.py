"""Decoding on all cores.

Threads are enough for photos, because Pillow releases the interpreter while it decodes. For small images the
interpreter takes most of the time (about 100 of 140 us for a 32-pixel PNG), so if there are many, processes decode
them. These are started as separate programs, because multiprocessing would run the user's script again.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from enum import Enum, auto
from queue import SimpleQueue
from types import TracebackType
from typing import BinaryIO

import numpy as np

from carl.child_process import start_python
from carl.data.decoding.decode import (
    DecodeError,
    Fitted,
    OversizedError,
    Shape,
    decode,
    decode_measured,
    strict_decoding,
)
from carl.data.listing import LARGEST_IMAGE, Content, EncodedImage
from carl.data.packing.pixel_statistics import available_cores
from carl.quality import Value

PROCESSES_FROM = 10_000  # images; fewer would be decoded before the processes have started
_TASK_IMAGES = 32
_TASK_BYTES = 32 * 2**20  # of images in memory, after which a task is full
BYTES_AHEAD = 2 * LARGEST_IMAGE  # of images in memory, after which no more are read ahead


class Oversized(Enum):
    """Takes the place of pixels if an image is too large to be packed as it is."""

    OVERSIZED = auto()


Decoded = np.ndarray | str | Oversized  # pixels (H, W, C), or the reason why there are none
Measured = tuple[Decoded, dict[str, Value] | None]  # with what quality checks measured, if they were asked to


def decode_all(
    images: Iterable[EncodedImage], count: int, shape: Shape, sharers: int = 1
) -> Iterator[tuple[EncodedImage, Decoded]]:
    """Every image with its pixels, in order; only a few tasks are read ahead.

    `sharers` is the number of processes on this machine that do the same and share its cores.
    """
    return ((image, pixels) for image, (pixels, _) in _decode_in_order(images, count, shape, sharers, False))


def measure_all(
    images: Iterable[EncodedImage], count: int, shape: Fitted, sharers: int = 1
) -> Iterator[tuple[EncodedImage, Measured]]:
    """The same, with what quality checks measure of each image before it is scaled."""
    return _decode_in_order(images, count, shape, sharers, True)


def _decode_in_order(
    images: Iterable[EncodedImage], count: int, shape: Shape, sharers: int, measured: bool
) -> Iterator[tuple[EncodedImage, Measured]]:
    cores = max(1, available_cores() // sharers)
    with strict_decoding(), ExitStack() as stack:
        processes: SimpleQueue[_DecoderProcess] | None = None
        if cores > 1 and count >= PROCESSES_FROM and sys.executable:
            processes = SimpleQueue()
            for _ in range(cores):
                processes.put(stack.enter_context(_DecoderProcess()))
        pool = stack.enter_context(ThreadPoolExecutor(cores))
        batches, ahead = _tasks(images), 0
        waiting: deque[tuple[list[EncodedImage], Future[list[Measured]]]] = deque()
        try:
            while True:
                while len(waiting) < 3 * cores and ahead < BYTES_AHEAD and (batch := next(batches, [])):
                    contents = [image.content for image in batch]
                    waiting.append((batch, pool.submit(_decode_some, contents, shape, measured, processes)))
                    ahead += sum(map(_bytes, batch))
                if not waiting:
                    return
                batch, task = waiting.popleft()
                yield from zip(batch, task.result(), strict=True)
                ahead -= sum(map(_bytes, batch))
        finally:
            for _, task in waiting:
                task.cancel()


def _tasks(images: Iterable[EncodedImage]) -> Iterator[list[EncodedImage]]:
    """The images in groups of _TASK_IMAGES, or fewer if they are large."""
    task: list[EncodedImage] = []
    size = 0
    for image in images:
        task.append(image)
        size += _bytes(image)
        if len(task) == _TASK_IMAGES or size >= _TASK_BYTES:
            yield task
            task, size = [], 0
    if task:
        yield task


def _bytes(image: EncodedImage) -> int:
    """The memory that an image takes while it waits; a file takes none."""
    content = image.content
    return content.nbytes if isinstance(content, np.ndarray) else len(content) if isinstance(content, bytes) else 0


def _decode_some(
    contents: list[Content], shape: Shape, measured: bool, processes: SimpleQueue[_DecoderProcess] | None = None
) -> list[Measured]:
    if processes is not None:
        process = processes.get()
        try:
            return process.decode(contents, shape, measured)
        except (OSError, EOFError, pickle.UnpicklingError):
            pass  # the process is gone: decode here
        finally:
            processes.put(process)
    return [_decode_one(content, shape, measured) for content in contents]


def _decode_one(content: Content, shape: Shape, measured: bool) -> Measured:
    try:
        return decode_measured(content, shape) if measured and shape is not None else (decode(content, shape), None)
    except DecodeError as error:
        return str(error), None
    except OversizedError:
        return Oversized.OVERSIZED, None


class _DecoderProcess:
    """A separate Python process that runs `serve`."""

    def __enter__(self) -> _DecoderProcess:
        code = f"import sys; sys.path[:] = {sys.path!r}; from carl.data.decoding.parallel import serve; serve()"
        self._process = start_python(
            ["-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        return self

    def decode(self, contents: list[Content], shape: Shape, measured: bool) -> list[Measured]:
        pickle.dump((contents, shape, measured), self._requests, protocol=5)
        self._requests.flush()
        answer: list[Measured] = pickle.load(self._answers)
        return answer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()  # it has nothing to lose
        self._process.wait()
        for stream in (self._requests, self._answers):
            with suppress(OSError):  # requests that a dead process never received
                stream.close()


def serve(requests: BinaryIO | None = None, answers: BinaryIO | None = None) -> None:
    """Answer requests from standard input until it ends."""
    requests, answers = requests or sys.stdin.buffer, answers or sys.stdout.buffer
    sys.stdout = sys.stderr  # so that nothing else is written between the answers
    with strict_decoding():
        while True:
            try:
                contents, shape, measured = pickle.load(requests)
            except EOFError:
                return
            pickle.dump(_decode_some(contents, shape, measured), answers, protocol=5)
            answers.flush()
