"""Pickles of arrays, bytes, text, numbers, lists and dicts, which cannot run anything.

A pickle that asks for NumPy's classes gets stand-ins, which only remember what they are told. The arrays are made
from that afterwards, so no state from a file ever reaches NumPy's own unpickling.
"""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from carl.errors import UserError
from carl.files import open_regular


def load_pickle(path: Path) -> Any:
    """What the file holds, if it is plain data; text from Python 2 is read as Latin-1."""
    try:
        with open_regular(path) as file:
            _check_places(file)
            file.seek(0)
            return _with_arrays(_PlainUnpickler(file, encoding="latin1").load(), {})
    except _ForbiddenError as error:
        raise UserError(
            f"{path} asks for {error}, which plain data never needs, so it was not loaded; get the file from its "
            "official address"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check that you may read it") from error
    except Exception as error:  # unpickling damaged bytes raises nearly anything
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}); download it again") from error


class _ForbiddenError(Exception):
    pass


def _check_places(file: IO[bytes]) -> None:
    """Refuse a pickle whose memo numbers have gaps: the reader makes room for every number below the largest."""
    for count, (operation, argument, _) in enumerate(pickletools.genops(file)):
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > count + 1:
            raise _ForbiddenError(f"place {argument} of its memory")


def _shown(value: Any) -> str:
    """A value for an error message: the beginning of a text, otherwise only the type, since lists may be endless."""
    return repr(value[:40]) if isinstance(value, str) else f"<{type(value).__name__}>"


class _Function:
    """A function that a pickle may call but not change."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise _ForbiddenError("a change of a function")


class _DataType:
    """Takes the place of numpy.dtype: only numbers, and text of fixed size."""

    def __init__(self, code: str = "", align: bool = False, copy: bool = False) -> None:
        if not isinstance(code, str) or np.dtype(code).kind not in "biufSU" or np.dtype(code).names:
            raise _ForbiddenError(f"the data type {_shown(code)}")
        self.numpy = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, byte_order, subarray, names, fields = state[:5]
        if subarray or names or fields:
            raise _ForbiddenError("a data type with fields")
        self.numpy = self.numpy.newbyteorder(byte_order)


class _Array:
    """Takes the place of numpy.ndarray."""

    def __init__(self, array: np.ndarray | None = None) -> None:
        self.array = array

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, shape, data_type, columns_first, data = state
        raw = data.encode("latin1") if isinstance(data, str) else data
        self.array = _make_array(raw, data_type, shape, columns_first)


def _make_array(raw: Any, data_type: Any, shape: Any, columns_first: Any) -> np.ndarray:
    if not isinstance(raw, bytes | bytearray) or not isinstance(data_type, _DataType):
        raise _ForbiddenError("an array of Python objects")
    return np.frombuffer(raw, data_type.numpy).reshape(shape, order="F" if columns_first else "C")


def _reconstruct(subtype: Any, shape: Any, code: Any) -> _Array:
    """An empty array, which the pickle then fills."""
    if subtype is not _Array:
        raise _ForbiddenError(f"an array of type {_shown(subtype)}")
    return _Array()


def _from_buffer(buffer: Any, data_type: Any, shape: Any, order: Any) -> _Array:
    """How NumPy pickles contiguous arrays with protocol 5."""
    return _Array(_make_array(buffer, data_type, shape, order == "F"))


def _scalar(data_type: Any, data: Any) -> Any:
    raw = data.encode("latin1") if isinstance(data, str) else data
    return _make_array(raw, data_type, (1,), False)[0]


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """How protocol 2 writes bytes. Other codecs could do more, so only this one is allowed."""
    if encoding not in ("latin1", "latin-1"):
        raise _ForbiddenError(f"the codec {_shown(encoding)}")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    """How protocol 2 writes empty bytes: as a call of bytes()."""
    return b""


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DataType,
    ("_codecs", "encode"): _Function(_encode),
    ("__builtin__", "bytes"): _Function(_no_bytes),
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Function(_reconstruct) for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _Function(_scalar) for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _Function(_from_buffer) for core in ("core", "_core")},
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise _ForbiddenError(f"{module}.{name}")
        return _ALLOWED[module, name]

    def persistent_load(self, pid: object) -> Any:
        raise _ForbiddenError("an object from outside the file")


def _with_arrays(value: Any, made: dict[int, Any]) -> Any:
    """The value with real arrays; a stand-in that was never filled, or anything else, is refused.

    `made` holds finished lists and dicts. Shared ones stay shared; otherwise a few bytes could fill any memory.
    """
    if isinstance(value, _Array) and isinstance(value.array, np.ndarray):
        return value.array
    if value is None or isinstance(value, str | bytes | bool | int | float | np.generic):
        return value
    if id(value) not in made:
        if isinstance(value, dict):
            found: Any = {_with_arrays(key, made): _with_arrays(item, made) for key, item in value.items()}
        elif isinstance(value, list | tuple):
            found = [_with_arrays(item, made) for item in value]
        else:
            raise _ForbiddenError(f"a {type(value).__name__}")
        made[id(value)] = found
    return made[id(value)]
