"""Official archives: downloaded and checked, and unpacked without trusting the names in them.

Our own, because torchvision writes a download under its final name before it is complete.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from carl.data.packing.cache import has_folder, remove_abandoned, why_unusable
from carl.errors import UserError
from carl.terminal import Progress
from carl.user_paths import cache_folder

_TIMEOUT = 30  # seconds to wait for an answer
_CHUNK = 2**20


@dataclass(frozen=True)
class Archive:
    """A file that the authors of a data set publish."""

    url: str
    md5: str
    folder: str  # that it unpacks to

    @property
    def filename(self) -> str:
        return self.url.rsplit("/", 1)[1]


def fetch(archive: Archive, root: Path, progress: Progress) -> Path:
    """The archive in `root`, downloaded if it is missing, with its checksum verified."""
    path = root / archive.filename
    remove_abandoned(root.glob(f".{archive.filename}.*.partial"))
    if not path.exists():
        _download(archive, path, progress)
    elif (found := _md5(path)) != archive.md5:
        raise UserError(
            f"{path} has the MD5 sum {found} instead of {archive.md5}, so it is damaged or partial; delete it "
            f"and run this again, or download it by hand from {archive.url}"
        )
    return path


def unpacked(archive: Archive, root: Path, progress: Progress) -> Path:
    """The folder that a tar archive unpacks to, as torchvision lays it out in the same `root`."""
    folder = root / archive.folder
    remove_abandoned(root.glob(f".partial-{archive.folder}-*"))
    if folder.is_dir():
        return folder
    path = fetch(archive, root, progress)
    with tempfile.TemporaryDirectory(prefix=f".partial-{archive.folder}-", dir=root) as temporary:
        _unpack_tar(path, Path(temporary))
        made = Path(temporary) / archive.folder
        if not made.is_dir():
            raise UserError(f"{path} has no folder {archive.folder} in it; delete it and run this again")
        try:
            os.rename(made, folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was faster
                raise
    return folder


def check_member(archive: Path, name: str) -> None:
    """Refuse names that lead out of the folder they are unpacked to."""
    windows = PureWindowsPath(name)
    if name.startswith(("/", "\\")) or windows.drive or ".." in PurePosixPath(name).parts or ".." in windows.parts:
        raise UserError(
            f"{archive} has a member {name!r} that points outside of it, so nothing was unpacked; get the file from "
            "its official address"
        )


def _unpack_tar(path: Path, target: Path) -> None:
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                check_member(path, member.name)
                if not (member.isfile() or member.isdir()):
                    raise UserError(
                        f"{path} has a member {member.name!r} that is a link or a device, so it was not unpacked; "
                        "get the file from its official address"
                    )
                if member.isfile():
                    place = target / member.name
                    place.parent.mkdir(parents=True, exist_ok=True)
                    content = archive.extractfile(member)
                    assert content is not None  # it is a regular file
                    with content, open(place, "wb") as file:
                        shutil.copyfileobj(content, file, _CHUNK)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        _raise_if_full(error, target.parent)
        raise UserError(f"{path} cannot be unpacked ({error}); delete it and run this again") from error


def _raise_if_full(error: Exception, folder: Path) -> None:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise UserError(f"the disk of {folder} is full; free some space, or set data.root to another folder") from None


def _download(archive: Archive, path: Path, progress: Progress) -> None:
    if cache_folder() in path.parents and not has_folder():
        raise UserError(f"{archive.url} cannot be downloaded: {why_unusable()}, or data.root")
    by_hand = f"download {archive.url} by hand and put it at {path}"
    partial = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
        digest = hashlib.md5(usedforsecurity=False)
        with (
            os.fdopen(descriptor, "wb") as file,
            urllib.request.urlopen(archive.url, timeout=_TIMEOUT) as answer,
        ):
            total, done = int(answer.headers.get("Content-Length") or 0), 0
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                progress(f"downloading {archive.filename}", done, total)
        if digest.hexdigest() != archive.md5:
            raise UserError(
                f"{archive.url} gave a file with the MD5 sum {digest.hexdigest()} instead of {archive.md5}; try "
                f"again, or {by_hand}"
            )
        os.chmod(partial, 0o644)  # mkstemp makes files that only the owner can read
        os.replace(partial, path)
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, UserError):
            raise
        _raise_if_full(error, path.parent)
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        reason = " ".join(str(getattr(error, "reason", None) or error).split())
        raise UserError(f"{archive.url} cannot be downloaded ({reason}); {by_hand}") from error
    finally:
        if partial is not None:
            Path(partial).unlink(missing_ok=True)


def _md5(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
