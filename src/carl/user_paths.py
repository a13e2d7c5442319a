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
