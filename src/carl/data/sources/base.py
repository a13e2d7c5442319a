"""What every source of images tells `carl.data.open`: what it is, how it is recognised and how it is listed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from carl.data.listing import Listing
from carl.terminal import Progress


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    name: str  # as the user wrote it
    path: str | None  # a path, a pattern or an address; None for a data set that is known by name
    root: Path  # the folder of the archives of known data sets; missing ones are downloaded to it
    progress: Progress

    @property
    def place(self) -> Path:
        """The absolute path of the file or folder; not for a data set that is known by name."""
        assert self.path is not None, f"{self.name} is known by name"
        return Path(self.path).absolute()


def never(what: object) -> bool:
    return False


def is_file(path: str, *endings: str) -> bool:
    """Whether a regular file exists at this path and its name has one of these endings."""
    return path.lower().endswith(endings) and os.path.isfile(path)


@dataclass(frozen=True)
class Source:
    """One kind of source: an entry of `SOURCES`, under the name that a user types or under a word for the kind."""

    about: str  # one sentence for `carl data list`
    list: Callable[[Request], Listing]  # reads no pixels yet
    recognises: Callable[[str], bool] = never  # whether a path, a pattern or an address is of this kind
    tells: Callable[[os.DirEntry[str]], bool] = never  # the first file that any kind claims decides what its folder is
    known_by_name: bool = True  # whether the user types the name of the entry instead of a path
    holds_splits: bool = False  # whether one file holds all splits, instead of one file per split
    list_files: Callable[[Request], Listing] | None = None  # for embedding: every file once, named by its own path
