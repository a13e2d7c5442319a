"""Weights of a module in safetensors files: written whole or not at all, read only if they fit and are finite."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn

from carl import files
from carl.errors import UserError
from carl.models.safetensors_files import read_tensors
from carl.records.weights_hash import StoredTensor, hash_tensors


def write_weights(path: Path, module: nn.Module, facts: dict[str, str] | None = None) -> None:
    """Write the weights, with what the file says about itself."""
    weights = {key: value.detach().cpu().contiguous() for key, value in module.state_dict().items()}
    with files.atomic_writer(path) as file:
        file.write(_with_sorted_facts(save(weights, metadata=facts)))


def _with_sorted_facts(content: bytes) -> bytes:
    """The file with its metadata sorted: safetensors writes them in any order, which changes bytes for nothing."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    if "__metadata__" not in header:
        return content
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(-(-len(text) // 8) * 8)  # tensors begin at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def read_weights_into(path: Path, module: nn.Module) -> None:
    try:
        module.load_state_dict(read_tensors(path))
    except Exception as error:  # a damaged file and a foreign one differ only in their message
        reason = " ".join(str(error).split()[:30]) or "unreadable"
        raise UserError(f"{path} does not fit this run: {reason}; restore the file or train again") from None
    check_finite(path, module)


def check_finite(path: Path, module: nn.Module) -> None:
    """Refuse weights with NaN or infinity, which give no features."""
    bad = next((key for key, value in module.state_dict().items() if not bool(value.isfinite().all())), None)
    if bad is not None:
        raise UserError(f"{path} holds values that are not finite (in {bad}); restore the file or train again")


def weights_hash(module: nn.Module) -> str:
    """The hash of a module's weights and batch-norm statistics. The file they are saved in has the same hash."""
    return hash_tensors(
        StoredTensor(
            name=key,
            type=str(value.dtype),
            shape=tuple(value.shape),
            content=value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes(),
        )
        for key, value in module.state_dict().items()
    )
