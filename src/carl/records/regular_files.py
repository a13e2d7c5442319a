"""What lies in a run directory is read here. Another person may have made it, so only regular files are read."""

from __future__ import annotations

from pathlib import Path

from carl.files import open_regular


def read_bytes(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    return read_bytes(path).decode()
