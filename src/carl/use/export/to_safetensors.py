"""One file of weights; their names are those of timm and, for ResNets, of torchvision."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from carl import files
from carl.use.export.format import Compute, Export, Format, computing

if TYPE_CHECKING:
    from torch import nn


def write(export: Export) -> None:
    from safetensors.torch import save

    with files.atomic_writer(export.path) as file:
        file.write(save(export.weights, metadata=export.facts))


def load(export: Export) -> Compute:
    return load_into_timm(export, export.path)


def usage(export: Export) -> str:
    return usage_with_timm(export, export.path)


def load_into_timm(export: Export, weights: Path) -> Compute:
    """timm's model of the same name with the weights in this file."""
    import timm
    from safetensors.torch import load_file

    from carl.models.encoders import use_small_stem

    model: nn.Module = timm.create_model(export.architecture, **export.timm_arguments)
    if export.config.stem == "small":
        use_small_stem(model, export.wanted.channels, export.architecture)
    model.load_state_dict(load_file(weights))
    return computing(model)


def usage_with_timm(export: Export, weights: Path) -> str:
    arguments = "".join(f", {key}={value!r}" for key, value in export.timm_arguments.items())
    stem = small_stem_lines(export)
    return "\n".join(
        [
            "import timm",
            *(["import torch"] if stem else []),
            "from safetensors.torch import load_file",
            "",
            f"model = timm.create_model({export.architecture!r}{arguments})",
            *stem,
            f"model.load_state_dict(load_file({str(weights)!r}))",
            "features = model.eval()(images)",
        ]
    )


def small_stem_lines(export: Export) -> list[str]:
    """Lines of Python that give a library's ResNet the small stem, if the run has it."""
    if export.config.stem != "small":
        return []
    weight = export.model.get_parameter("conv1.weight")
    return [
        f"model.conv1 = torch.nn.Conv2d({weight.shape[1]}, {weight.shape[0]}, 3, padding=1, bias=False)",
        "model.maxpool = torch.nn.Identity()",
    ]


SAFETENSORS = Format(
    words="one file of weights",
    file_name="encoder.safetensors",
    write=write,
    load=load,
    usage=usage,
)
