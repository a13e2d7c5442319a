"""Files that appear whole or not at all, and replace nothing of the user's; safe opening; locks between processes."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from carl.errors import UserError

if TYPE_CHECKING:
    from filelock import FileLock

PARTIAL = ".partial"  # ends the names of what is not whole yet
_MARK_WITHIN = 2000  # bytes from the beginning of a file
# Characters that a file name must not hold on Windows, and names that it keeps for devices.
_NOT_IN_NAMES = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


@contextmanager
def atomic_writer(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that takes the name `path` only once all of it is on the disk.

    It is written beside its target, flushed to the disk and renamed; after a crash either the old or the new
    content is there, never a part. Where `path` is a link, the file it leads to is replaced. A pipe or a device is not
    replaced: it gets the content once that is complete. If the system refuses (the disk is full, the folder is
    read-only), the OSError names `path`.
    """
    if is_special(path):
        with tempfile.TemporaryFile() as file:
            yield file
            file.seek(0)
            try:
                with path.open("wb") as device:
                    shutil.copyfileobj(file, device)
            except OSError as error:
                error.filename = str(path)
                raise
        return
    name = None
    try:
        target = end_of_links(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        # The name is cut, because the whole with its additions could be longer than a disk allows.
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:32]}.", suffix=PARTIAL, dir=target.parent)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~umask())  # mkstemp makes files that only the owner can read
        os.replace(name, target)
    except BaseException as error:
        if name is not None:
            Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and (error.filename is None or str(error.filename).endswith(PARTIAL)):
            error.filename, error.filename2 = str(path), None
        raise


def is_special(path: Path) -> bool:
    """Whether a pipe, a device or a socket is there, or at the end of links from there."""
    return path.exists() and not path.is_file() and not path.is_dir()


def end_of_links(path: Path) -> Path:
    """Where a link leads, over others if need be, whether anything is there or not; `path` if it is no link."""
    if not path.is_symlink():
        return path
    target = Path(os.path.realpath(path))
    if target.is_symlink():  # the links go in a circle
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return target


def check_replaceable(path: Path, force: bool, mark: bytes | None = None) -> None:
    """Refuse an output that would replace a file of the user's: the one rule for the outputs of all commands.

    A file that exists is replaced only with `force`, or if it has near its beginning the `mark` that this kind of
    output carries. Pipes and devices are written to and not replaced, so they need no force.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the name of a file")
    if force or not path.is_file():
        return
    if mark is not None:
        with path.open("rb") as file:
            if mark in file.read(_MARK_WITHIN):
                return
    raise UserError(f"{path} exists; choose another file, or replace it with --force")


def open_regular(path: str | Path) -> BinaryIO:
    """The file, open for reading; an OSError if it is a pipe, a device or anything else that is not a regular file.

    The file may be a stranger's: opening a named pipe would wait for ever for someone to write to it, and a device may
    do anything.
    """
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115  the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8. Bytes of a file name that are not UTF-8 are written as escapes, such as \\udcff."""
    with atomic_writer(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


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


def umask() -> int:
    """The rights that this process does not give to new files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
