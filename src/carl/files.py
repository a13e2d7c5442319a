"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

PARTIAL = ".partial"  # ends the names of what is not whole yet
# Characters that a file name must not hold on Windows, and names that it keeps for devices.
_NOT_IN_NAMES = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


@contextmanager
def atomic_writer(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that takes the name `path` only once all of it is on the disk.

    It is written beside its target, flushed to the disk and renamed; after a crash either the old or the new
    content is there, never a part. What the system refuses (a full disk, a folder that is read-only) is an OSError
    that names `path`.
    """
    name = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=PARTIAL, dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())  # mkstemp makes files that only the owner can read
        os.replace(name, path)
    except BaseException as error:
        if name is not None:
            Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and (error.filename is None or str(error.filename).endswith(PARTIAL)):
            error.filename, error.filename2 = str(path), None
        raise


def write_text(path: Path, text: str) -> None:
    with atomic_writer(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a file of one a line; a last line cut off by a crash is left out, a missing file is empty."""
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def remove_partial_files(folder: Path) -> None:
    """Delete what a killed process left half-written."""
    for path in folder.rglob(f".*{PARTIAL}"):
        if not path.is_dir():
            path.unlink(missing_ok=True)


@contextmanager
def only_holder(path: Path, patience: float = 0.0) -> Iterator[bool]:
    """Whether this process alone holds the lock file `path`, for as long as the context lasts.

    If another holds it, this one waits for up to `patience` seconds.

    The system lets go of a lock when its holder ends, however it ends: what a killed process leaves behind is in no
    one's way. On disks that cannot lock files everyone is let in.
    """
    with open(path, "a+b") as file:
        deadline = time.monotonic() + patience
        while not (held := _lock(file)) and time.monotonic() < deadline:
            time.sleep(0.02)
        try:
            yield held
        finally:
            if held:
                _unlock(file)


if sys.platform == "win32":
    import msvcrt

    def _lock(file: IO[bytes]) -> bool:
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(file: IO[bytes]) -> None:
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a network disk without locks
            return True
        return True

    def _unlock(file: IO[bytes]) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_UN)
        except OSError:  # as above
            return


def portable_name(text: str) -> str:
    """`text` as a file name that every system allows: what Windows forbids becomes an underscore."""
    name = _NOT_IN_NAMES.sub("_", text).rstrip(". ")
    name = name.encode("utf-8", "backslashreplace").decode().replace("\\", "_")
    return f"_{name}" if not name or _DEVICES.fullmatch(name) else name


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
