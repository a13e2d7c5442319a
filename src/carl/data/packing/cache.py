"""The cache of packed images: one folder per entry, which appears whole or not at all.

CARL_CACHE/packed/KEY/
  meta.json            format version, source, class names, statistics, notes
  bad-files.txt        one line per image that was left out: name, tab, reason
  train/pixels.npy     (N, H, W, C) uint8, read row by row; missing if the source's own file is used
  train/labels.npy     (N,) int64, if there are labels
  train/names.json     if the images were files
  test/...
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
import tokenize
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import Timeout

from carl import files
from carl.data.dataset import Dataset, PackedImages, Split, Statistics
from carl.data.decoding.file_arrays import open_array
from carl.data.listing import Listing, StoredSplit
from carl.errors import UserError
from carl.terminal import warn
from carl.user_paths import NO_FOLDER, cache_folder

FORMAT_VERSION = 1
MAKE_ANEW = "run this again, and the images are packed anew"
_ABANDONED_AFTER = 2 * 24 * 3600  # seconds without a write, after which no process can still be writing it


def has_folder() -> bool:
    """Whether there is any place for a cache."""
    return cache_folder() != NO_FOLDER


def why_unusable() -> str:
    """Why nothing can be written to the cache."""
    if not has_folder():
        return "no home folder is known for the cache; set CARL_CACHE to a folder"
    return f"{cache_folder()} is full or cannot be written to"


def kept_folder(name: str, what: str) -> Path:
    """The folder `name` of the cache, made if need be, for `what` a command cannot do without keeping."""
    folder = cache_folder() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"{cache_folder()}: {error.strerror}" if has_folder() else "no home folder is known"
        raise UserError(
            f"there is no cache to keep {what} in ({reason}); set CARL_CACHE to a folder that can be written to"
        ) from None
    return folder


def entry_folder(key: str) -> Path:
    return cache_folder() / "packed" / key


@dataclass(frozen=True)
class Meta:
    """What an entry says about itself."""

    format: int
    source: str
    splits: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fingerprint: str
    class_names: tuple[str, ...]
    notes: tuple[str, ...]
    bad_files: int

    def write(self, folder: Path) -> None:
        (folder / "meta.json").write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @staticmethod
    def read(folder: Path) -> Meta | None:
        """What the entry says; None if there is none, or one of another format."""
        try:
            values = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
            if values["format"] != FORMAT_VERSION:
                return None
            arguments: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
            meta = Meta(**arguments)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return meta if meta._makes_sense() else None

    def _makes_sense(self) -> bool:
        """Whether all values have the right types: files in a cache may be damaged."""
        texts = (*_listed(self.splits), *_listed(self.class_names), *_listed(self.notes), self.source, self.fingerprint)
        numbers = (*_listed(self.mean), *_listed(self.std))
        return (
            all(isinstance(text, str) for text in texts)
            and all(isinstance(number, float) and math.isfinite(number) for number in numbers)
            and len(_listed(self.mean)) == len(_listed(self.std)) > 0
            and min(_listed(self.std)) > 0
            and isinstance(self.bad_files, int)
        )


def _listed(value: Any) -> tuple[Any, ...]:
    """The items of a tuple; anything else gives one item that no check accepts."""
    return value if isinstance(value, tuple) else (None,)


def write_split(folder: Path, split: Split) -> None:
    """Write labels and names beside the pixels, which are there already."""
    folder.mkdir(exist_ok=True)
    if split.labels is not None:
        np.save(folder / "labels.npy", split.labels)
    if split.names is not None:
        (folder / "names.json").write_text(json.dumps(split.names))


def load(folder: Path, listing: Listing) -> tuple[Dataset, int] | None:
    """The packed data set and its number of bad files; None if there is no complete entry."""
    meta = Meta.read(folder)
    if meta is None or set(meta.splits) != set(listing.splits):
        return None
    try:
        splits = {name: _load_split(folder / name, listing, name) for name in meta.splits}
        if any(split.images.channels != len(meta.mean) for split in splits.values()):
            raise ValueError("other images than those of the statistics")
    except (OSError, ValueError, TypeError, EOFError, SyntaxError, MemoryError, RecursionError, tokenize.TokenError):
        return None  # a damaged entry is made anew
    dataset = Dataset(
        name=listing.name,
        splits=splits,
        statistics=Statistics(meta.mean, meta.std),
        fingerprint=meta.fingerprint,
        class_names=meta.class_names,
        notes=(*listing.notes, *(note.replace("{entry}", str(folder)) for note in meta.notes)),
        folds=listing.folds,
        opened=listing.opened,
    )
    return dataset, meta.bad_files


def _load_split(folder: Path, listing: Listing, name: str) -> Split:
    source = listing.splits[name]
    if isinstance(source, StoredSplit):
        return Split(PackedImages(source.pixels), source.labels)
    pixels = open_array(folder / "pixels.npy", MAKE_ANEW)
    labels_file, names_file = folder / "labels.npy", folder / "names.json"
    labels = np.load(labels_file, allow_pickle=False) if labels_file.exists() else None
    names = tuple(json.loads(names_file.read_text())) if names_file.exists() else None
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or 0 in pixels.shape:
        raise ValueError("no images")
    if labels is not None and (labels.shape != pixels.shape[:1] or labels.dtype != np.int64):
        raise ValueError("labels of other images")
    if names is not None and (len(names) != len(pixels) or not all(isinstance(name, str) for name in names)):
        raise ValueError("names of other images")
    return Split(PackedImages(pixels), labels, names)


@contextmanager
def temporary_entry(key: str, alone: bool) -> Iterator[Path | None]:
    """A temporary folder to write an entry into, beside its final place; None if the cache cannot be written to.

    A process that is `alone`, because it holds the lock of this key, first removes what killed processes left.
    """
    parent = cache_folder() / "packed"
    for left in parent.glob(f".partial-{key}-*") if alone else ():
        shutil.rmtree(left, ignore_errors=True)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".partial-{key}-", dir=parent))
    except OSError:
        yield None
        return
    remove_abandoned(parent.glob(".partial-*"))
    remove_abandoned(cache_folder().glob("*/.*.partial"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # gone already if `publish` has moved it


@contextmanager
def locked(name: str, work: str) -> Iterator[bool]:
    """Hold a lock that one process at a time can hold, so that the `work` is done once; gives whether it is held.

    A process that has to wait says so. If the cache cannot be locked or written to, each process does the work on its
    own, which `publish` allows.
    """
    held = False
    with ExitStack() as stack:
        with suppress(OSError):
            path = cache_folder() / "locks" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = files.lock_of(path)
            try:
                stack.enter_context(lock.acquire(timeout=0))
            except Timeout:
                warn(f"waiting for another process that {work}")
                stack.enter_context(lock.acquire())
            held = True
        yield held


def publish(folder: Path, entry: Path, listing: Listing) -> Dataset:
    """Give a finished folder its final name and open it. The first of several processes wins: all wrote the same."""
    os.chmod(folder, 0o777 & ~files.umask())  # mkdtemp makes folders that only the owner can read
    for _ in range(3):
        with suppress(OSError):  # the name is taken
            os.rename(folder, entry)
        found = load(entry, listing)
        if found is not None:
            return found[0]
        _remove(entry)  # what was there is damaged
    raise UserError(f"the cache entry {entry} cannot be replaced; delete it, or set CARL_CACHE to another folder")


def _remove(entry: Path) -> None:
    """Remove an entry: it is moved out of the way first, so that no one sees half of it."""
    aside = Path(tempfile.mkdtemp(prefix=".partial-", dir=entry.parent))
    with suppress(OSError):  # another process removed it
        os.rename(entry, aside / "old")
    shutil.rmtree(aside, ignore_errors=True)


def remove_abandoned(partial: Iterable[Path]) -> None:
    """Remove unfinished files and folders that no process is writing any more."""
    for path in partial:
        with suppress(OSError):  # another process removes it too
            newest = max(part.lstat().st_mtime for part in (path, *path.rglob("*")))
            if time.time() - newest <= _ABANDONED_AFTER:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
