"""What a source of images tells the door (`carl.data.open`): what it is, how it is recognised and how it is listed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from carl.data.listing import Listing, Progress


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    name: str  # as the user wrote it
    path: str | None  # where it lies: a path, a pattern or an address; None for a data set that is known by name
    root: Path  # where the archives of known data sets lie, or are downloaded to
    progress: Progress

    @property
    def place(self) -> Path:
        """The file or folder in full; only for what lies in one."""
        assert self.path is not None, f"{self.name} is known by name"
        return Path(self.path).absolute()


def never(what: object) -> bool:
    return False


def is_file(path: str, *endings: str) -> bool:
    """Whether a file of that path is there, and its name ends in one of these."""
    return path.lower().endswith(endings) and os.path.isfile(path)


@dataclass(frozen=True)
class Source:
    """One kind of source: an entry of `SOURCES`, under the name that a user types or under what stands for the kind."""

    about: str  # one sentence for `carl data list`
    list: Callable[[Request], Listing]  # reads no pixel yet
    recognises: Callable[[str], bool] = never  # a path, a pattern or an address
    tells: Callable[[os.DirEntry[str]], bool] = never  # the first file that any kind claims decides for its folder
    known_by_name: bool = True  # whether the user types the name of the entry, instead of a path
    holds_splits: bool = False  # whether one file holds all splits, instead of one with the others beside it
    list_files: Callable[[Request], Listing] | None = None  # for embedding: every file once, under its own path
