"""State dicts from files that anyone may have made, and how they come into an encoder."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from carl.errors import UserError, first_line
from carl.models.safetensors_files import read_tensors
from carl.models.torch_files import read_torch_file

CLASSIFIERS = ("fc.", "head.", "classifier.", "head.fc.")  # layers above the representation, by timm's names
WRAPPERS = ("module.", "encoder.", "backbone.", "model.")  # prefixes that other tools add


def read_weights(path: Path) -> dict[str, Tensor]:
    """A state dict from a .safetensors or torch file; nothing in the file is ever executed."""
    if not path.is_file():
        raise UserError(f"{str(path)!r} is not a file; give a .safetensors or .pth file")
    try:
        if path.suffix == ".safetensors":
            return read_tensors(path)
        loaded = read_torch_file(path)
    except Exception as error:  # each format has errors of its own; all mean that the file is not usable
        reason = first_line(error, otherwise="unreadable")
        raise UserError(f"{path} holds no weights: {reason}; give a .safetensors file or a state dict") from None
    for key in ("state_dict", "model", "teacher"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(isinstance(key, str) and _is_dense(loaded[key]) for key in loaded):
        raise UserError(f"{path} is not a state dict of tensors; save model.state_dict()")
    return loaded


def _is_dense(value: object) -> bool:
    """Whether a value is an ordinary tensor: not sparse, not quantised, and not just a shape without numbers."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return False
    return not value.is_quantized and value.device.type == "cpu"


def load_weights(encoder: nn.Module, path: Path) -> None:
    """Load a file into the encoder, as `put_into` does."""
    put_into(encoder, read_weights(path), str(path))


def put_into(encoder: nn.Module, found: dict[str, Tensor], name: str) -> None:
    """Load weights into the encoder. They must have every key of it, and may have a classifier besides.

    `name` is what the user calls them.
    """
    wanted = encoder.state_dict()
    for prefix in WRAPPERS:
        inner = {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)}
        if len(inner.keys() & wanted.keys()) > len(found.keys() & wanted.keys()):
            found = inner
    found = {key: value for key, value in found.items() if key in wanted or not key.startswith(CLASSIFIERS)}
    missing, over = wanted.keys() - found.keys(), found.keys() - wanted.keys()
    if missing or over:
        key, what = (min(missing), "is missing") if missing else (min(over), "has no place")
        raise UserError(
            f"{name} does not fit the encoder: {key!r} {what} ({len(missing)} missing, {len(over)} over); "
            "name the architecture that it was trained with (--backbone, or NAME in timm:NAME@FILE), and its --stem"
        )
    for key, value in found.items():
        if value.shape != wanted[key].shape or value.is_complex():
            raise UserError(
                f"{name} does not fit the encoder: {key!r} is {tuple(value.shape)} {value.dtype}, not "
                f"{tuple(wanted[key].shape)} {wanted[key].dtype}; choose the --backbone, --stem and channels that it "
                "was trained with"
            )
    encoder.load_state_dict(found)
    bad = next((key for key, value in encoder.state_dict().items() if not bool(value.isfinite().all())), None)
    if bad is not None:
        raise UserError(f"{name} holds values that are not finite (in {bad}); give a file without NaN and infinity")
