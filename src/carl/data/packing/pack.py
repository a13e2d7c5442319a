"""From a listing to a data set: every image is decoded once, packed at one size, and kept in the cache.

Images of equal size with sides of at most decode.AS_IS_SIDE are packed as they are, whatever size is asked for: the
views resize crops anyway. Others are scaled and cropped to the square in the middle.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import io
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from carl.data.dataset import UNLABELLED, Dataset, PackedImages, Split
from carl.data.decoding.decode import Shape, image_size, strict_decoding
from carl.data.decoding.file_arrays import FileArray, open_array
from carl.data.decoding.parallel import Oversized, decode_all
from carl.data.listing import (
    ArraySplit,
    BadFile,
    EncodedSplit,
    Listing,
    SplitListing,
    StoredSplit,
)
from carl.data.packing import cache
from carl.data.packing.pixel_statistics import pixels_digest, statistics_and_digest
from carl.defaults import BAD_AT_LEAST, BAD_ONE_IN, LARGEST_SIDE, LARGEST_USUAL_SIDE, MOST_CLASSES
from carl.errors import UserError, one_line
from carl.files import atomic_writer
from carl.framing import Framing, Interpolation
from carl.terminal import Progress
from carl.user_paths import cache_folder

_SURVEYED = 2_000  # images whose headers are read to find their usual size


class _VariedSizes(Exception):
    """The images cannot be packed as they are."""


def check_side(image_size: int | None) -> None:
    if image_size is not None and not 1 <= image_size <= LARGEST_SIDE:
        raise UserError(f"image_size={image_size} is not a side from 1 to {LARGEST_SIDE} pixels; use one such as 64")


@dataclass(frozen=True)
class PackingRequest:
    """How images are to be packed."""

    size: int | None  # side that they are scaled to; None: they stay as they are, or get their usual side
    max_bad: int | None  # files that may be left out because they cannot be decoded; None: the usual number
    interpolation: Interpolation
    progress: Progress


def open_listing(listing: Listing, asked: PackingRequest) -> Dataset:
    """The data set from the cache, or packed now and cached.

    If several processes need the same images, as with torchrun, one packs and the others wait.
    """
    return dataclasses.replace(_opened(listing, asked), interpolation=asked.interpolation)


def _opened(listing: Listing, asked: PackingRequest) -> Dataset:
    if listing.key is None:
        return _Packing(listing, asked, folder=None).run()
    found = _cached(listing, asked)
    if found is not None:
        return found
    with cache.locked(listing.key, "packs the images") as alone:
        return _cached(listing, asked) or _packed(listing, asked, alone)


def _cached(listing: Listing, asked: PackingRequest) -> Dataset | None:
    for side in dict.fromkeys((None, asked.size or _known_side(listing))):
        entry = _entry(listing, side, asked.interpolation)
        found = cache.load(entry, listing)
        if found is not None:
            dataset, bad_files = found
            _check_bad(bad_files, _total(listing), asked.max_bad, f"listed in {entry}/bad-files.txt")
            return dataclasses.replace(dataset, fitted=side is not None)
    return None


def _packed(listing: Listing, asked: PackingRequest, alone: bool) -> Dataset:
    with cache.temporary_entry(listing.key or "", alone) as folder:
        try:
            return _Packing(listing, asked, folder).run()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
    return _Packing(listing, asked, folder=None).run()  # the disk is full


def _entry(listing: Listing, side: int | None, interpolation: Interpolation) -> Path:
    """The cache entry of images that were fitted to `side`, or left as they are (None)."""
    how = f" {interpolation}" if side is not None and interpolation != "bicubic" else ""
    text = f"{listing.key} {side or 'as is'} {cache.FORMAT_VERSION}{how}"
    return cache.entry_folder(hashlib.blake2b(text.encode(), digest_size=16).hexdigest())


def _side_file(listing: Listing) -> Path:
    """The file that remembers which side was chosen when none was asked for."""
    return cache_folder() / "sides" / f"{listing.key}.txt"


def _known_side(listing: Listing) -> int | None:
    try:
        return int(_side_file(listing).read_text())
    except (OSError, ValueError):  # then the side is found again
        return None


def _total(listing: Listing) -> int:
    return sum(split.count for split in listing.splits.values())


class _Packing:
    """One run over a listing. Pixels are written to `folder`, or kept in memory if it is None."""

    def __init__(self, listing: Listing, asked: PackingRequest, folder: Path | None) -> None:
        self.listing = listing
        self.asked = asked
        self.folder = folder
        self.shape: Shape = None  # that images are fitted to; None: they stay as they are
        self.fitted_side: int | None = None  # if images are of varied or large size
        self.bad: list[BadFile] = []
        self.notes: list[str] = []

    def run(self) -> Dataset:
        splits = {name: self._pack_split(name, split) for name, split in self.listing.splits.items()}
        _check_one_shape(splits)
        self._report_bad()
        class_names = self.listing.class_names or _numbered_classes(splits)
        _check_labels(splits, class_names)
        statistics, train_digest = statistics_and_digest(splits["train"].images.pixels, self.asked.progress)
        fingerprint = _fingerprint(splits, train_digest, self.asked.progress)
        if self.folder is None:
            where = "" if self.listing.key is None else f": {cache.why_unusable()}"
            notes = (*self.listing.notes, *self.notes, f"packed in memory, not cached{where}")
            return Dataset(
                name=self.listing.name,
                splits=splits,
                statistics=statistics,
                fingerprint=fingerprint,
                class_names=class_names,
                notes=notes,
                folds=self.listing.folds,
                opened=self.listing.opened,
                fitted=self.fitted_side is not None,
            )
        for name, split in splits.items():
            cache.write_split(self.folder / name, split)
        meta = cache.Meta(
            format=cache.FORMAT_VERSION,
            source=self.listing.name,
            splits=tuple(splits),
            mean=statistics.mean,
            std=statistics.std,
            fingerprint=fingerprint,
            class_names=class_names,
            notes=tuple(self.notes),
            bad_files=len(self.bad),
        )
        meta.write(self.folder)
        del splits  # so that the files are closed while they are moved
        dataset = cache.publish(self.folder, self._entry(), self.listing)
        if self.asked.size is None and self.fitted_side is not None:
            with suppress(OSError), atomic_writer(_side_file(self.listing)) as file:  # or it is found again
                file.write(str(self.fitted_side).encode())
        return dataclasses.replace(dataset, fitted=self.fitted_side is not None)

    def _pack_split(self, name: str, split: SplitListing) -> Split:
        if isinstance(split, StoredSplit):
            return Split(PackedImages(split.pixels), split.labels)
        with self._stream(name) as stream:
            writer = PixelWriter(stream)
            if isinstance(split, ArraySplit):
                labels = self._write_blocks(name, split, writer)
                names = None
            else:
                labels, names = self._write_decoded(name, split, writer)
            return Split(PackedImages(writer.finish()), labels, names)

    def _stream(self, name: str) -> BinaryIO:
        if self.folder is None:
            return _KeptBytes(memory_of_machine() if self.listing.key is not None else None)
        (self.folder / name).mkdir()
        return open(self.folder / name / "pixels.npy", "w+b")

    def _write_blocks(self, name: str, split: ArraySplit, writer: PixelWriter) -> np.ndarray | None:
        labels = []
        for pixels, block_labels in split.read():
            writer.append(pixels)
            if block_labels is not None:
                labels.append(block_labels.astype(np.int64))
            self.asked.progress(f"packing {name}", writer.count, split.count)
        if not writer.count:
            raise UserError(f"{self.listing.name}: the {name} split has no images; download or save it again")
        return np.concatenate(labels) if labels else None

    def _write_decoded(
        self, name: str, split: EncodedSplit, writer: PixelWriter
    ) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
        known_bad = len(self.bad)
        try:
            return self._decode_all(name, split, writer)
        except _VariedSizes:
            side = self.asked.size or _usual_side(split)
            self.shape, self.fitted_side = Framing(side, side, interpolation=self.asked.interpolation), side
            self.notes.append(
                f"images of varied or large size were scaled and cropped to {side} x {side}; "
                "--image-size sets another side"
            )
            del self.bad[known_bad:]
            writer.restart()
            return self._decode_all(name, split, writer)

    def _decode_all(
        self, name: str, split: EncodedSplit, writer: PixelWriter
    ) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
        labels, names, done = [], [], 0
        for image, pixels in decode_all(split.read(), split.count, self.shape):
            done += 1
            self.asked.progress(f"decoding {name}", done, split.count)
            if isinstance(pixels, str):
                self.bad.append(BadFile(image.name, pixels))
                continue
            if isinstance(pixels, Oversized):
                raise _VariedSizes
            if self.shape is None and writer.count and pixels.shape[:2] != writer.shape[:2]:
                raise _VariedSizes
            if writer.count and pixels.shape != writer.shape:
                reason = f"it has {pixels.shape[2]} channels, and the first image has {writer.shape[2]}"
                self.bad.append(BadFile(image.name, reason))
                continue
            writer.append(pixels[None])
            labels.append(image.label)
            names.append(image.name)
        if not writer.count:
            first = f": {self.bad[-1].name}: {self.bad[-1].reason}" if self.bad else ""
            raise UserError(
                f"{self.listing.name}: none of the {split.count} files of the {name} split can be decoded{first}"
            )
        self.shape = self.shape or writer.shape[:2]  # that of the training images; other splits are fitted to it
        return (
            np.array(labels, np.int64) if split.labelled else None,
            tuple(names) if split.named else None,
        )

    def _report_bad(self) -> None:
        """List the images that were left out, or fail if there are too many."""
        if not self.bad:
            return
        lines = [f"{one_line(bad.name)}\t{one_line(bad.reason)}\n" for bad in self.bad]
        total = _total(self.listing)
        listed = f"such as {lines[0].strip()}".replace("\t", ": ")
        if self.folder is not None:
            (self.folder / "bad-files.txt").write_text("".join(lines), encoding="utf-8", errors="backslashreplace")
            kept = self._entry().with_suffix(".bad-files.txt")  # because there will be no entry
            if len(self.bad) > bad_limit(total, self.asked.max_bad):
                shutil.copyfile(self.folder / "bad-files.txt", kept)
                listed = f"listed in {kept}"
        _check_bad(len(self.bad), total, self.asked.max_bad, listed)
        if self.folder is not None:
            listed = "listed in {entry}/bad-files.txt"
        self.notes.append(f"{len(self.bad)} of {total} files cannot be decoded and were left out, {listed}")

    def _entry(self) -> Path:
        return _entry(self.listing, self.fitted_side, self.asked.interpolation)


class _KeptBytes(io.BytesIO):
    """A file in memory. It survives `with`, because the pixels are a view of it, and refuses more than `most` bytes."""

    def __init__(self, most: int | None) -> None:
        super().__init__()
        self._most = most

    def write(self, data: Any, /) -> int:
        if self._most is not None and self.tell() + memoryview(data).nbytes > self._most:
            raise UserError(
                f"the images cannot be cached and need more than the {self._most:,} bytes of memory of this machine "
                f"({cache.why_unusable()}); free some space, or set CARL_CACHE to another folder"
            )
        return super().write(data)

    def close(self) -> None:
        pass


def memory_of_machine() -> int | None:
    """The bytes of memory of this machine, if it tells."""
    with suppress(AttributeError, ValueError, OSError):  # Windows has no sysconf
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


class PixelWriter:
    """Appends images to a .npy file whose length is known only at the end."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.restart()

    @property
    def in_memory(self) -> bool:
        return isinstance(self._stream, io.BytesIO)

    def restart(self) -> None:
        self.count = 0
        self.shape: tuple[int, int, int] = (0, 0, 0)
        self._stream.seek(0)
        self._stream.truncate()

    def append(self, pixels: np.ndarray) -> None:
        """Add images (n, H, W, C) uint8."""
        if not self.count:
            self.shape = (pixels.shape[1], pixels.shape[2], pixels.shape[3])
            self._write_header()
            self._data_start = self._stream.tell()
        self._stream.write(np.ascontiguousarray(pixels).data)
        self.count += len(pixels)

    def finish(self) -> np.ndarray | FileArray:
        """The pixels (N, H, W, C), in their file if there is one."""
        self._stream.seek(0)
        self._write_header()  # has the length of the first one: NumPy leaves room for the first axis to grow
        assert self._stream.tell() == self._data_start
        self._stream.flush()
        if isinstance(self._stream, io.BytesIO):
            data = np.frombuffer(self._stream.getbuffer(), np.uint8, offset=self._data_start)
            return data.reshape(self.count, *self.shape)
        os.fsync(self._stream.fileno())  # the entry's name must not reach the disk before its pixels
        return open_array(Path(self._stream.name), cache.MAKE_ANEW)

    def _write_header(self) -> None:
        header = {"descr": "|u1", "fortran_order": False, "shape": (self.count, *self.shape)}
        np.lib.format.write_array_header_1_0(self._stream, header)


def _usual_side(split: EncodedSplit) -> int:
    """The median of the shorter sides, but at most LARGEST_USUAL_SIDE."""
    step = max(1, split.count // _SURVEYED)
    with strict_decoding():
        sizes = [image_size(image.content) for image in islice(split.read(), 0, None, step)]
    sides = [min(size) for size in sizes if size is not None]
    return max(1, min(int(np.median(sides)) if sides else LARGEST_USUAL_SIDE, LARGEST_USUAL_SIDE))


def bad_limit(total: int, max_bad: int | None) -> int:
    """How many files may be bad: what the user said, or the usual share, which for small sources is a fixed number."""
    return max_bad if max_bad is not None else max(BAD_AT_LEAST, total // BAD_ONE_IN)


def _check_bad(bad: int, total: int, max_bad: int | None, listed: str) -> None:
    limit = bad_limit(total, max_bad)
    if bad > limit:
        raise UserError(
            f"{bad} of {total} files cannot be decoded, {listed}, more than the {limit} that are allowed; repair or "
            f"remove them, or allow more with --max-bad {bad}"
        )


def _check_one_shape(splits: dict[str, Split]) -> None:
    train = splits["train"].images.pixels.shape[1:]
    for name, split in splits.items():
        if split.images.pixels.shape[1:] != train:
            raise UserError(
                f"the {name} images are {split.images.pixels.shape[1:]} (height, width, channels), and the training "
                f"images are {train}; give both splits the same shape"
            )


def _numbered_classes(splits: dict[str, Split]) -> tuple[str, ...]:
    labels = [split.labels for split in splits.values() if split.labels is not None and split.labelled]
    highest = max((int(some.max()) for some in labels), default=-1)
    return tuple(str(label) for label in range(min(highest + 1, MOST_CLASSES + 1)))


def _check_labels(splits: dict[str, Split], class_names: tuple[str, ...]) -> None:
    if len(class_names) > MOST_CLASSES:
        raise UserError(f"the labels name more than {MOST_CLASSES} classes; number the classes from 0 without gaps")
    for name, split in splits.items():
        if split.labels is None or not len(split.labels):
            continue
        low, high = int(split.labels.min()), int(split.labels.max())
        if low < UNLABELLED or high >= len(class_names):
            raise UserError(
                f"the labels of the {name} split run from {low} to {high}, but there are {len(class_names)} classes; "
                f"number the classes from 0, and write {UNLABELLED} for an image without a label"
            )


def _fingerprint(splits: dict[str, Split], train_digest: int, progress: Progress) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(splits):
        split = splits[name]
        pixels = split.images.pixels
        checksum = train_digest if name == "train" else pixels_digest(pixels, progress)
        digest.update(f"{name} {pixels.shape} {checksum} ".encode())
        if split.labels is not None:
            digest.update(split.labels.astype("<i8").tobytes())
    return digest.hexdigest()
