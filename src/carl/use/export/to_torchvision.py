"""A state dict as torch.save writes it, for the ResNets that timm and torchvision share."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from carl import files
from carl.errors import UserError
from carl.use.export.format import Compute, Export, Format, computing
from carl.use.export.to_safetensors import small_stem_lines

if TYPE_CHECKING:
    from torch import nn


def write(export: Export) -> None:
    import torch

    _torchvision_model(export)  # refuses what torchvision does not have
    buffer = io.BytesIO()
    torch.save(export.weights, buffer)
    with files.atomic_writer(export.path) as file:
        file.write(buffer.getbuffer())


def _torchvision_model(export: Export) -> nn.Module:
    """torchvision's model of the same name with the run's input and no classifier."""
    import torchvision
    from torch import nn

    from carl.models.encoders import use_small_stem

    name = export.architecture
    if name not in torchvision.models.list_models(module=torchvision.models):
        raise UserError(f"torchvision has no model {name!r}; export to another format, for example --to timm")
    model: nn.Module = torchvision.models.get_model(name, weights=None)
    first = getattr(model, "conv1", None)
    if isinstance(first, nn.Conv2d) and hasattr(model, "fc"):
        model.fc = nn.Identity()
        if export.config.stem == "small":
            use_small_stem(model, export.wanted.channels, name)
        elif first.in_channels != export.wanted.channels:
            model.conv1 = nn.Conv2d(export.wanted.channels, first.out_channels, 7, stride=2, padding=3, bias=False)
    ours, theirs = export.model.state_dict(), model.state_dict()
    if {key: value.shape for key, value in ours.items()} != {key: value.shape for key, value in theirs.items()}:
        raise UserError(f"torchvision and timm name the weights of {name!r} differently; export with --to timm")
    return model


def load(export: Export) -> Compute:
    import torch

    model = _torchvision_model(export)
    model.load_state_dict(torch.load(export.path, weights_only=True))
    return computing(model)


def usage(export: Export) -> str:
    stem = small_stem_lines(export)
    if not stem and export.wanted.channels != 3:
        weight = export.model.get_parameter("conv1.weight")
        stem = [f"model.conv1 = torch.nn.Conv2d({weight.shape[1]}, {weight.shape[0]}, 7, 2, 3, bias=False)"]
    return "\n".join(
        [
            "import torch",
            "import torchvision",
            "",
            f"model = torchvision.models.{export.architecture}(weights=None)",
            "model.fc = torch.nn.Identity()",
            *stem,
            f"model.load_state_dict(torch.load({str(export.path)!r}, weights_only=True))",
            "features = model.eval()(images)",
        ]
    )


TORCHVISION = Format(
    words="weights for torchvision's ResNets",
    file_name="encoder-torchvision.pth",
    write=write,
    load=load,
    usage=usage,
)
