"""The one guard for reading what lies in a run directory: only regular files are read.

Another person may have made the directory. Opening a named pipe would wait for ever for someone to write to it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """The file, open for reading; an OSError if it is anything else, such as a named pipe or a device."""
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115  the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def read_bytes(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    return read_bytes(path).decode()


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
