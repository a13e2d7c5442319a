"""A file of weights on the disk, .safetensors or a state dict. Nothing in it is ever run."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from carl.errors import UserError
from carl.models.architectures import known_architecture, published
from carl.models.pretrained import pip_weights
from carl.models.pretrained.weights import (
    UNKNOWN_LICENCE,
    Kind,
    PretrainedWeights,
    read_stated,
    source_in,
    wanted_by_timm,
)
from carl.models.safetensors_files import read_facts
from carl.models.state_dicts import read_weights
from carl.user_paths import expanded


def recognises(given: str) -> bool:
    return expanded(given).is_file()


def find(given: str, backbone: str | None) -> PretrainedWeights:
    path = expanded(given)
    facts = _exported_facts(path)
    backbone = backbone or facts.get("architecture")
    if backbone is None:
        raise UserError(f"{given} does not say which architecture it is for; add --backbone, such as resnet18")
    known = known_architecture(backbone)
    small = facts.get("stem") == "small" or (known.startswith("resnet") and _has_small_kernel(path))
    own = read_stated(facts) if facts.get("architecture") == known else None
    source = source_in(facts)

    def state(channels: int, image_size: int) -> dict[str, Tensor]:
        return pip_weights.read_file(known, path)

    return PretrainedWeights(
        name=given,
        backbone=backbone,
        stem="small" if small else "imagenet",
        wanted=own or wanted_by_timm(published(backbone).to_dict()),
        origin=f"the file {path.name}" + ("" if source is None else f", made from {source.origin}"),
        licence=UNKNOWN_LICENCE if source is None else source.licence,
        state=state,
    )


def states_architecture(path: Path) -> bool:
    """Whether a file says which architecture it is for, as those of carl do."""
    return "architecture" in _exported_facts(path)


def _exported_facts(path: Path) -> dict[str, str]:
    """What `carl pretrain` and `carl export` write into a .safetensors file; {} for others."""
    if path.suffix != ".safetensors":
        return {}
    try:
        return read_facts(path)
    except Exception:  # why it cannot be read is said when it is loaded
        return {}


def _has_small_kernel(path: Path) -> bool:
    """Whether the first kernel of a ResNet is that of the small stem."""
    kernels = {key: value for key, value in read_weights(path).items() if key.endswith("conv1.weight")}
    first = kernels[min(kernels, key=len)] if kernels else None  # blocks have such kernels under longer names
    return first is not None and first.ndim == 4 and first.shape[-1] == 3


WEIGHTS_FILE = Kind(recognises, find)
