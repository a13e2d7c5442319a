"""Shards of encoded images, here or at any address that fsspec knows: WebDataset's tar files, or Parquet files.

A shard is read from its beginning, as far as it is needed, and never copied to the disk. Only the number of images in
each shard is kept in the cache.

Training reads shards as it goes. Everything that needs whole images (statistics, probes, galleries) uses a packed
sample.
"""

from __future__ import annotations

import glob
import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from carl.data.dataset import UNLABELLED
from carl.data.decoding.tar import read_tar
from carl.data.listing import EncodedImage, EncodedSplit, Listing, Unusable
from carl.data.packing.cache import locked
from carl.data.sources.base import Request, Source
from carl.data.sources.folder import walk_files
from carl.data.sources.parquet import find_columns, rows_at_once
from carl.errors import UserError, first_line
from carl.files import open_regular, write_json
from carl.terminal import Progress
from carl.user_paths import cache_folder

KINDS = (".tar", ".parquet")
NOT_READ = "empty, or too large to read"  # why an image of a shard cannot be used
SAMPLE = 2_048  # images packed for statistics and probes: a probe needs 1,000, and more hardly change the mean
SAMPLED_SHARDS = 32
MOST_SHARDS = 1_000_000
_AT_ONCE = 16  # shards whose images are counted at the same time
_ROWS = 64  # of a Parquet file that are read at once
_MOST_STATED = 2**24  # images per shard that a sizes.json may state; their order is kept in memory
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,4000})\.\.(\d{1,4000})")


@dataclass(frozen=True)
class Shards:
    """Addresses in order, and the number of images at each."""

    addresses: tuple[str, ...]
    counts: tuple[int, ...]
    key: str  # changes when the shards do

    def __len__(self) -> int:
        return len(self.addresses)

    @property
    def images(self) -> int:
        return sum(self.counts)

    @cached_property
    def starts(self) -> np.ndarray:
        """(shards,) the number of the first image of each shard, counted over all shards."""
        return np.cumsum([0, *self.counts[:-1]])

    def read(self, shard: int, places: np.ndarray) -> Iterator[tuple[int, bytes | None]]:
        """The images at `places` (ascending) of one shard; None for an image that cannot be read."""
        address, wanted, missing = self.addresses[shard], set(places.tolist()), len(places)
        if not missing:
            return
        for place, content in read_images(address, wanted):
            if place in wanted:
                yield place, content
                missing -= 1
            if not missing:
                return
        raise UserError(f"{address} has fewer images than when they were counted; restore it, or start a new run")

    def listed(self, shard: int, places: np.ndarray) -> Iterator[EncodedImage]:
        """The same images with names, ADDRESS#PLACE."""
        for place, content in self.read(shard, places):
            usable = content or Unusable(NOT_READ)
            yield EncodedImage(self.name_of(shard, place), usable, UNLABELLED)

    def name_of(self, shard: int, place: int) -> str:
        return f"{self.addresses[shard]}#{place}"

    def find(self, number: int) -> tuple[int, int]:
        """The shard of image `number`, counted over all shards, and its place in that shard."""
        shard = int(np.searchsorted(self.starts, number, side="right")) - 1
        return shard, int(number - self.starts[shard])


def list_shards(asked: Request) -> Listing:
    """All images of all shards."""
    shards = find_shards(asked.path or asked.name, asked.progress)

    def read() -> Iterator[EncodedImage]:
        for shard, count in enumerate(shards.counts):
            yield from shards.listed(shard, np.arange(count))

    every = EncodedSplit(shards.images, labelled=False, read=read)
    return Listing(name=asked.name, key=shards.key, splits={"train": every}, shards=shards)


def list_sample(shards: Shards, name: str) -> Listing:
    """A sample: the first images of some shards, which are evenly spread over all shards."""
    filled = np.flatnonzero(shards.counts)
    chosen = filled[np.unique(np.linspace(0, len(filled) - 1, min(SAMPLED_SHARDS, len(filled))).round().astype(int))]
    each = -(-SAMPLE // len(chosen))
    sampled = [(int(shard), np.arange(min(each, shards.counts[shard]))) for shard in chosen]
    count = sum(len(places) for _, places in sampled)

    def read() -> Iterator[EncodedImage]:
        for shard, places in sampled:
            yield from shards.listed(shard, places)

    return Listing(
        name=name,
        key=hashlib.blake2b(f"{count} images of {shards.key}".encode(), digest_size=16).hexdigest(),
        splits={"train": EncodedSplit(count, labelled=False, read=read)},
    )


def names_shards(source: str) -> bool:
    """Whether a source can only be shards: a tar file, an address, or a pattern of many."""
    path = source.lower()
    return "://" in source or path.endswith(".tar") or (path.endswith(KINDS) and any(sign in source for sign in "{*?["))


def has_tar_files(folder: str) -> bool:
    return any(file.name.lower().endswith(".tar") for file in walk_files(Path(folder)))


def find_shards(source: str, progress: Progress) -> Shards:
    """The shards of a pattern such as `shards/{000..019}.tar`, a folder or an address, with their images counted.

    Counting reads the headers of local tar files and the footers of Parquet files. A remote tar file is read through
    once, unless a `sizes.json` beside it has the count, as is usual for WebDataset: {"000.tar": 1000}.
    """
    addresses = expand(source)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        stamps = list(pool.map(_stamp, addresses))
    key = hashlib.blake2b(json.dumps([addresses, stamps]).encode(), digest_size=16).hexdigest()
    kept = cache_folder() / "shards" / f"{key}.json"
    with locked(key, "counts the images"):
        counts = _kept_counts(kept, len(addresses))
        if counts is None:
            counts = _count_all(addresses, progress)
            with suppress(OSError):  # if it fails, they are counted again next time
                write_json(kept, counts)
    if not sum(counts):
        raise UserError(f"{source} holds no images; give tar files of images, or Parquet files with an image column")
    return Shards(tuple(addresses), tuple(counts), key)


def expand(source: str) -> list[str]:
    """The addresses that a pattern, a folder or an address stands for, in order, without repetitions."""
    if "://" not in source and Path(source).is_dir():
        found = [str(path) for kind in KINDS for path in sorted(Path(source).rglob(f"*{kind}")) if path.is_file()]
    else:
        if math.prod(len(_alternatives(braces[1])) for braces in _BRACES.finditer(source)) > MOST_SHARDS:
            raise UserError(
                f"{source:.200} stands for more than {MOST_SHARDS} shards; name fewer shards, and larger ones"
            )
        found = list(itertools.chain.from_iterable(_globbed(pattern) for pattern in _without_braces(source)))
    found = list(dict.fromkeys(found))
    if not found:
        raise UserError(f"{source} names no shards; give a pattern such as 'shards/{{00..19}}.tar' or a folder of them")
    wrong = next((address for address in found if not address.lower().endswith(KINDS)), None)
    if wrong is not None:
        raise UserError(f"{wrong} is not a shard; shards end in {' or '.join(KINDS)}")
    return found


def _without_braces(pattern: str) -> Iterator[str]:
    """The pattern with braces expanded, as in a shell: `{000..002}` is a range, `{a,b}` a choice."""
    found = _BRACES.search(pattern)
    if found is None:
        yield pattern
        return
    words, width = _alternatives(found[1]), len(found[1].partition("..")[0])
    for word in words:
        shown = word if isinstance(word, str) else f"{word:0{width}d}"
        yield from _without_braces(pattern[: found.start()] + shown + pattern[found.end() :])


def _alternatives(inside: str) -> Sequence[str] | range:
    """What braces stand for: words, or a range of numbers, which takes no memory."""
    numbers = _RANGE.fullmatch(inside)
    if numbers is None:
        return inside.split(",")
    first, last = int(numbers[1]), int(numbers[2])
    return range(first, min(last, first + MOST_SHARDS) + 1)  # one more than allowed is enough to be refused


def _globbed(pattern: str) -> list[str]:
    if not any(sign in pattern for sign in "*?["):
        return [pattern]
    if "://" not in pattern:
        return sorted(glob.glob(pattern))
    system, path = _file_system(pattern)
    try:
        return sorted(str(system.unstrip_protocol(found)) for found in system.glob(path))
    except Exception as error:  # every service has errors of its own
        raise _unreachable(pattern, error) from None


def _file_system(address: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise UserError(f"{address} needs fsspec; pip install 'carl-ssl[stream]'") from None
    try:
        system, path = url_to_fs(address)
    except Exception as error:  # an unknown protocol, or one whose package is not installed
        raise _unreachable(address, error) from None
    return system, str(path)


def _unreachable(address: str, error: Exception) -> UserError:
    reason = first_line(error)
    return UserError(f"cannot read {address}: {reason}; check the address, and your access to it")


def open_address(address: str) -> BinaryIO:
    """An open file, local or remote."""
    if "://" not in address:
        try:
            return open_regular(address)
        except OSError as error:
            raise UserError(f"cannot read {address}: {error.strerror}; check the path") from None
    system, path = _file_system(address)
    try:
        file: BinaryIO = system.open(path, "rb")
    except Exception as error:  # every service has errors of its own
        raise _unreachable(address, error) from None
    return file


def _stamp(address: str) -> list[str]:
    """Facts that change when the file at an address changes."""
    if "://" not in address:
        try:
            status = os.stat(address)
        except OSError as error:
            raise UserError(f"cannot read {address}: {error.strerror}; check the path") from None
        return [str(status.st_size), str(status.st_mtime_ns)]
    system, path = _file_system(address)
    try:
        known = system.info(path)
    except Exception as error:  # every service has errors of its own
        raise _unreachable(address, error) from None
    return [str(known.get(name, "")) for name in ("size", "ETag", "etag", "mtime", "LastModified", "updated")]


def _kept_counts(kept: Path, shards: int) -> list[int] | None:
    with suppress(OSError, ValueError):
        counts = json.loads(kept.read_text())
        if isinstance(counts, list) and len(counts) == shards and all(isinstance(count, int) for count in counts):
            return counts
    return None


def _count_all(addresses: Sequence[str], progress: Progress) -> list[int]:
    stated = {folder: stated_sizes(folder) for folder in {address.rpartition("/")[0] for address in addresses}}

    def count(address: str) -> int:
        folder, _, name = address.rpartition("/")
        known = stated[folder].get(name)
        return count_images(address) if known is None else known

    counts = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for found in pool.map(count, addresses):
            counts.append(found)
            progress("counting images, shards", len(counts), len(addresses))
    return counts


def stated_sizes(folder: str) -> dict[str, int]:
    """The counts in a sizes.json; only for remote shards, where counting means reading everything."""
    if "://" not in folder:
        return {}
    try:
        with open_address(f"{folder}/sizes.json") as file:
            stated = json.loads(file.read(16 * 2**20))
        return {str(name): int(count) for name, count in stated.items() if 0 <= int(count) <= _MOST_STATED}
    except Exception:  # missing, unreadable or of another form: then the images are counted
        return {}


def count_images(address: str) -> int:
    with open_address(address) as file, _readable(address):
        if address.lower().endswith(".parquet"):
            return int(_parquet(file, address).metadata.num_rows)
        return sum(1 for _ in read_tar(file, address, ()))


@contextmanager
def _readable(address: str) -> Iterator[None]:
    """Turn errors into one line: a shard is damaged, or the connection was lost while it was read."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # every service has errors of its own
        raise _unreachable(address, error) from error


def read_images(address: str, wanted: Container[int]) -> Iterator[tuple[int, bytes | None]]:
    """The encoded images of a shard with their places; images that are not wanted may be missing or empty."""
    with open_address(address) as file, _readable(address):
        if address.lower().endswith(".parquet"):
            yield from _read_parquet(file, address, wanted)
        else:
            yield from read_tar(file, address, wanted)


def _parquet(file: BinaryIO, address: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{address} is not a readable Parquet file ({first_line(error)}); write or download it again"
        ) from error


def _read_parquet(file: BinaryIO, address: str, wanted: Container[int]) -> Iterator[tuple[int, bytes | None]]:
    opened = _parquet(file, address)
    columns = find_columns(opened, Path(address))
    first, at_once = 0, min(_ROWS, rows_at_once(opened, address))
    for number in range(opened.num_row_groups):
        rows = opened.metadata.row_group(number).num_rows
        if any(place in wanted for place in range(first, first + rows)):
            place = first
            for batch in opened.iter_batches(at_once, row_groups=[number], columns=[columns.image]):
                images = batch.column(columns.image)
                for row in (images.field("bytes") if columns.encoded_in_struct else images).to_pylist():
                    yield place, row
                    place += 1
        first += rows


SHARDS = Source(
    about="tar files of images as WebDataset writes them, a pattern or an address of many; read as training goes.",
    list=list_shards,
    recognises=lambda path: names_shards(path) and not os.path.isdir(path),
    known_by_name=False,
)
