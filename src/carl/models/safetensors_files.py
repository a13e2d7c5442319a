"""Reads .safetensors files, which anyone may have made, without mapping them into memory.

safetensors' own `load_file` maps a file, and its tensors stay mapped until they are copied. If another program cuts the
file short in between, the process is killed. Read into memory first, a short file is an ordinary error.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO, Any

from safetensors.torch import load
from torch import Tensor

from carl.files import open_regular

_LONGEST_HEADER = 100_000_000  # bytes, as in safetensors


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors, sorted by name. Any exception may be raised for a file that is damaged."""
    with open_regular(path) as file:
        header = _read_header(file)
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        size = file.tell() + max(ends, default=0)
        found = os.fstat(file.fileno()).st_size
        if found != size:  # before memory is taken for it
            raise ValueError(f"it has {found} bytes, and its header says {size}")
        file.seek(0)
        content = file.read(size)  # if it has become shorter, safetensors says what is missing
    return dict(sorted(load(content).items()))  # safetensors gives them in a random order


def read_facts(path: Path) -> dict[str, str]:
    """What the file says about itself. Any exception may be raised for a file that is damaged."""
    with open_regular(path) as file:
        facts = _read_header(file).get("__metadata__") or {}
    return {str(key): str(value) for key, value in facts.items()}


def _read_header(file: IO[bytes]) -> dict[str, Any]:
    length = int.from_bytes(file.read(8), "little")
    if length > _LONGEST_HEADER:
        raise ValueError(f"its header would have {length} bytes")
    header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is not a table")
    return header
