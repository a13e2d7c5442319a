"""Images in a tar file as a stream: nothing is written to the disk, and no name in the file is used as a path.

Python's tarfile module reads extended headers of any size into memory, so a hostile file can fill it. Here every read
is bounded. The formats in use today are supported: ustar, GNU's long names, and pax headers.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import PurePosixPath
from typing import BinaryIO

from carl.data.listing import LARGEST_IMAGE
from carl.data.sources.folder import EXTENSIONS
from carl.errors import UserError

BLOCK = 512
LARGEST_HEADER = 2**20
LARGEST_MEMBER = 2**48  # more than any disk holds; larger numbers cannot even be skipped
_SKIPPED_AT_ONCE = 2**20
_REGULAR = (b"0", b"\0", b"7")


def read_tar(file: BinaryIO, address: str, wanted: Container[int]) -> Iterator[tuple[int, bytes | None]]:
    """The wanted images, numbered from 0 in the order of the file; None for an image that is too large to read.

    Images that are not wanted are skipped and given as empty bytes, so that all can be counted.
    """
    place, long_name, long_size = 0, "", None
    while (header := _header(file, address)).strip(b"\0"):  # an empty header ends the file
        kind, size = header[156:157], _checked_size(header, address)
        if kind in (b"x", b"L"):  # it describes the next member
            content = _read(file, size, address) if size <= LARGEST_HEADER else _skip(file, size)
            pax_name, pax_size = _pax(content) if kind == b"x" else (_text(content), None)
            long_name, long_size = pax_name or long_name, pax_size if pax_size is not None else long_size
            continue
        name = long_name or _text(header[:100])
        size = size if long_size is None else long_size
        long_name, long_size = "", None
        if kind not in _REGULAR or PurePosixPath(name).suffix.lower() not in EXTENSIONS:
            _skip(file, size)
            continue
        if place in wanted and size <= LARGEST_IMAGE:
            yield place, _read(file, size, address)
        else:
            _skip(file, size)
            yield place, None if place in wanted else b""
        place += 1


def _header(file: BinaryIO, address: str) -> bytes:
    header = file.read(BLOCK)
    if header[:2] == b"\x1f\x8b":
        raise UserError(f"{address} is compressed, and shards cannot be; unpack it with gunzip")
    if len(header) < BLOCK:
        raise _cut_off(address)
    return header


def _checked_size(header: bytes, address: str) -> int:
    """The size that a header states, after its checksum is verified."""
    try:
        right = sum(header[:148]) + 8 * ord(" ") + sum(header[156:]) == _number(header[148:156])
        size = _number(header[124:136])
    except ValueError:
        right, size = False, -1
    if not right or not 0 <= size <= LARGEST_MEMBER:
        raise UserError(f"{address} is not a tar file, or it is damaged; write or download it again")
    return size


def _number(field: bytes) -> int:
    """A number in octal digits, or in GNU's binary form for sizes of 8 GiB and more."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big") if field[0] == 0x80 else -1
    return int(field.strip(b" \0") or b"0", 8)


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "replace")


def _pax(content: bytes) -> tuple[str, int | None]:
    """The name and size in a pax header, whose records are `LENGTH KEY=VALUE` and a line feed."""
    name, size = "", None
    while content:
        length, _, _ = content.partition(b" ")
        # Python refuses to read numbers of thousands of digits; no record is longer than LARGEST_HEADER.
        if not length.isdigit() or len(length) > 7 or not 0 < int(length) <= len(content):
            break
        record, content = content[: int(length)], content[int(length) :]
        key, _, value = record[len(length) + 1 : -1].partition(b"=")
        if key == b"path":
            name = _text(value)
        elif key == b"size" and value.isdigit() and len(value) < 15:
            size = int(value)
    return name, size


def _read(file: BinaryIO, size: int, address: str) -> bytes:
    """The content of a member; afterwards the file is at the next header."""
    content = file.read(size)
    if len(content) < size:
        raise _cut_off(address)
    file.read(-size % BLOCK)
    return content


def _skip(file: BinaryIO, size: int) -> bytes:
    """Skip a member."""
    left = size + -size % BLOCK
    if file.seekable():
        file.seek(left, 1)
        return b""
    while left > 0 and (passed := file.read(min(left, _SKIPPED_AT_ONCE))):
        left -= len(passed)
    return b""


def _cut_off(address: str) -> UserError:
    return UserError(f"{address} ends in the middle of a file; write or download it again")
