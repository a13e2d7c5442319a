"""The hash that identifies weights in a result: the same for a file and for the module loaded from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from carl.records.regular_files import read_bytes

# Names of safetensors' number types in torch; the hash holds torch's.
TORCH_TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    """One entry of a state dict, as bytes."""

    name: str
    type: str  # torch.float32
    shape: tuple[int, ...]
    content: bytes | memoryview  # the numbers, row after row


def hash_tensors(tensors: Iterable[StoredTensor]) -> str:
    """SHA-256 of all weights and of the batch-norm statistics, with their names."""
    digest = hashlib.sha256()
    for tensor in sorted(tensors, key=lambda tensor: tensor.name):
        digest.update(f"{tensor.name} {tensor.type} {tensor.shape}".encode())
        digest.update(tensor.content)
    return digest.hexdigest()


def file_hash(path: Path) -> str:
    """The hash of the weights in a safetensors file; "" if it is missing or damaged."""
    try:
        return hash_tensors(_tensors_in(memoryview(read_bytes(path))))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""


def _tensors_in(content: memoryview) -> Iterator[StoredTensor]:
    start = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(bytes(content[8:start]))
    entries.pop("__metadata__", None)
    for name, entry in entries.items():
        first, last = entry["data_offsets"]
        numbers = content[start + first : start + last]
        yield StoredTensor(name, f"torch.{TORCH_TYPES[entry['dtype']]}", tuple(entry["shape"]), numbers)
