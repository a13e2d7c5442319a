"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from filelock import FileLock

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
    """The objects in a file with one per line; a last line cut off by a crash is left out, a missing file is empty."""
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

    If another process holds it, this one waits for up to `patience` seconds. On disks that cannot lock files everyone
    is let in.
    """
    from filelock import Timeout

    with ExitStack() as stack:
        try:
            stack.enter_context(lock_of(path).acquire(timeout=patience))
            held = True
        except Timeout:
            held = False
        except OSError as error:
            if error.filename is not None:  # the file cannot be opened, which is not about locks
                raise
            held = True
        yield held


def lock_of(path: Path) -> FileLock:
    """A lock on the file `path`, not acquired yet.

    The system releases it when its holder ends, however it ends, so a killed process leaves nothing in the way. The
    file itself stays: deleting it would let in a process while another, that had it open, holds it. Where the disk
    cannot lock, acquiring raises an OSError without a file name.
    """
    from filelock import FileLock  # here: it takes as long to import as the rest of the command line

    return FileLock(path, poll_interval=0.02, preserve_lock_file=True)


def portable_name(text: str) -> str:
    """`text` as a file name that every system allows: what Windows forbids becomes an underscore."""
    name = _NOT_IN_NAMES.sub("_", text).rstrip(". ")
    name = name.encode("utf-8", "backslashreplace").decode().replace("\\", "_")
    return f"_{name}" if not name or _DEVICES.fullmatch(name) else name


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
