"""Memory-mapped arrays: the file is checked before it is mapped, and again before it is read."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np

from carl.errors import UserError
from carl.files import open_regular


def map_array(path: Path) -> np.ndarray:
    """The array of a .npy file, memory-mapped; a ValueError if the file holds Python objects or is too short."""
    with open_regular(path) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, columns_first, dtype = read(file)
        size = os.fstat(file.fileno()).st_size
        if dtype.hasobject:
            raise ValueError("it holds Python objects")
        if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > size - file.tell():
            raise ValueError(f"it states the shape {shape} but has only {size} bytes")
        if not math.prod(shape) * dtype.itemsize:  # nothing to map
            return np.empty(shape, dtype)
        order = "F" if columns_first else "C"
        return np.memmap(file, dtype, "r", file.tell(), shape, order)  # type: ignore[call-overload, no-any-return]


def check_not_cut(array: np.ndarray) -> None:
    """Refuse a memory-mapped array whose file has become shorter: reading past its end would kill the process.

    It cannot see a file that is cut between this check and the reading that follows it. Nothing but a copy of the whole
    file could.
    """
    mapping = getattr(array, "_mmap", None)  # NumPy keeps it for views as well
    if mapping is not None and mapping.size() < len(mapping):
        raise UserError(
            f"{getattr(array, 'filename', None) or 'a file of images'} became shorter while it was in use; restore it "
            "and run this again"
        )
