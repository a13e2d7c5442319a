"""Paths as the user wrote them."""

from __future__ import annotations

import os
from pathlib import Path


def expanded(path: str) -> Path:
    """The path with `~` replaced by the home folder, or as it is written if that exists or no home is known."""
    literal = Path(path)
    if os.path.lexists(path):
        return literal
    try:
        return literal.expanduser()
    except RuntimeError:  # no such user, or a user without a home folder
        return literal


NO_FOLDER = Path(os.devnull) / "carl"  # where no one can write


def cache_folder() -> Path:
    """`CARL_CACHE`, or `carl` in the cache folder of the user; NO_FOLDER if no home folder is known."""
    if named := os.environ.get("CARL_CACHE"):
        return expanded(named)
    if os.name == "nt" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "carl" / "cache"
    if named := os.environ.get("XDG_CACHE_HOME"):
        return expanded(named) / "carl"
    try:
        return Path.home() / ".cache" / "carl"
    except RuntimeError:  # a user id without a name, and no HOME
        return NO_FOLDER
