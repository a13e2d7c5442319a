"""Reads what torch.save wrote, from any source: runs nothing in it, and takes no more memory than the file is long.

torch.load(weights_only=True) reads it in the end. The checks before that are our own, because it lets a short file fill
the memory.
"""

from __future__ import annotations

import io
import pickletools
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch

# The names that the pickle of a state dict or a checkpoint refers to. torch's own reader allows more, and with some of
# those a short file fills the memory: bytearray(5 * 10**10) makes fifty gigabytes of zeros, and so do tensors by size.
_WANTED = re.compile(
    r"collections (OrderedDict|Counter)|torch\._utils _rebuild_(tensor_v2|parameter|parameter_with_state)"
    r"|torch (?!Typed|Untyped)\w+Storage|torch (Size|device|bool|b?float\d+|u?int\d+|complex\d+)"
    r"|(builtins|__builtin__) (set|complex)|_codecs encode"
)
_ITEM_BYTES = {
    "Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
    "ComplexDouble": 16, "ComplexFloat": 8,
}  # fmt: skip
_ZIP = b"PK\x03\x04"
# Names in a zip, below a folder of any name. torch finds a record whatever the case of its name, and so could be given
# another pickle than the one that is checked here.
_RECORDS = re.compile(
    r"[^/\\]+/(data\.pkl|data/\d+|byteorder|version|\.format_version|\.storage_alignment|\.data/serialization_id)"
)
_LEGACY_PICKLES = 5  # before 1.6: magic number, version, system, the object, keys of its storages


def read_torch_file(path: Path) -> Any:
    """What torch.save wrote, on the CPU.

    Any exception may be raised for a file that is damaged, or that asks for more than tensors and numbers.
    """
    with path.open("rb") as file:
        packed = file.read(len(_ZIP)) == _ZIP
        file.seek(0)
        if packed:
            _check_zip(file)
            _check_what_torch_finds(path)
        else:
            for _ in range(_LEGACY_PICKLES):
                _check_pickle(file)
    return torch.load(path, map_location="cpu", weights_only=True)


def _check_zip(file: IO[bytes]) -> None:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        folders = {member.filename.partition("/")[0] for member in members}
        if len(folders) != 1 or len({member.filename for member in members}) != len(members):
            raise ValueError("it holds several folders, or a name twice, which torch.save does not write")
        for member in members:
            if not _RECORDS.fullmatch(member.filename):
                raise ValueError(f"it holds {member.filename[:200]!r}, which torch.save does not write")
            if member.compress_type != zipfile.ZIP_STORED:  # torch never does, and what is deflated may be a bomb
                raise ValueError(f"it is compressed ({member.filename}), which torch.save does not do")
        content = archive.read(f"{folders.pop()}/data.pkl")
    _check_pickle(io.BytesIO(content))
    _check_storages(content, members)


def _check_what_torch_finds(path: Path) -> None:
    """The same look at the pickle that torch's own reader finds.

    A file made for it can have two tables of contents, of which Python's reader and torch's each take another.
    """
    _check_pickle(io.BytesIO(torch._C.PyTorchFileReader(str(path)).get_record("data.pkl")))


def _check_storages(content: bytes, members: list[zipfile.ZipInfo]) -> None:
    """Refuse a storage that is shorter than its pickle says: older versions of torch would read beyond its end."""
    lengths = {member.filename.partition("/")[2]: member.file_size for member in members}
    for kind, key, count in _stated_storages(content):
        record = f"data/{key}"
        needed = count * _ITEM_BYTES[kind.removeprefix("torch ").removesuffix("Storage")]
        if lengths.get(record, -1) < needed:
            raise ValueError(f"its {record} is shorter than the {needed} bytes that its pickle names")


def _stated_storages(content: bytes) -> Iterator[tuple[str, str, int]]:
    """Class, key and number of values of each storage that a pickle names: ("storage", class, key, place, number)."""
    known: dict[int, Any] = {}  # what is referred to again: words and classes
    values: list[Any] = []  # since the last mark
    before = ""
    for operation, argument, _ in pickletools.genops(content):
        name = operation.name
        if name == "MARK":
            values = []
        elif name in ("BINUNICODE", "GLOBAL", "BININT", "BININT1", "BININT2", "LONG1"):
            values.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT") and argument is not None:
            known[argument] = values[-1] if before in ("BINUNICODE", "GLOBAL") else None
        elif name in ("BINGET", "LONG_BINGET") and argument is not None:
            values.append(known.get(argument))
        elif name == "BINPERSID":
            match values:
                case ["storage", str() as kind, str() as key, str(), int() as count] if kind.startswith("torch "):
                    yield kind, key, count
                case _:
                    raise ValueError("it names a storage in a way that torch.save does not")
        elif name != "TUPLE":
            values.append(None)  # whatever it is, it is not part of a storage's name
        before = name


def _check_pickle(file: IO[bytes]) -> None:
    """Refuse a pickle, up to its end, that names anything but tensors, numbers and containers."""
    for operation, argument, _ in pickletools.genops(file):
        if operation.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"):
            raise ValueError(f"it holds {operation.name}, which torch.save does not write")
        if operation.name == "GLOBAL" and not _WANTED.fullmatch(str(argument)):
            raise ValueError(f"it asks for {str(argument).replace(' ', '.')[:200]}, which weights do not need")
