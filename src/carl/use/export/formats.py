"""The formats that an encoder can be exported to: how each is written, loaded again and used."""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from carl import files
from carl.config import ModelConfig
from carl.errors import UserError
from carl.models.encoders import use_small_stem
from carl.records.run_directory import DataRecord

Compute = Callable[[Tensor], Tensor]  # images to features


@dataclass(frozen=True, eq=False)
class Export:
    """What is to be written, and where."""

    model: nn.Module  # on the CPU, with plain convolutions only
    config: ModelConfig
    data: DataRecord
    path: Path

    @property
    def architecture(self) -> str:
        return self.config.backbone.split(".")[0]  # without the name of pretrained weights

    @property
    def example(self) -> Tensor:
        """Two images: a batch of one would be taken for a constant by torch's exporter."""
        return torch.zeros(2, self.data.channels, self.data.image_size, self.data.image_size)

    @property
    def arguments(self) -> dict[str, Any]:
        """What timm.create_model needs besides the name."""
        arguments: dict[str, Any] = {"num_classes": 0, "in_chans": self.data.channels}
        known = timm.get_pretrained_cfg(self.architecture)
        if known is not None and known.fixed_input_size:
            arguments["img_size"] = self.data.image_size
        return arguments


@dataclass(frozen=True)
class Format:
    """A way to take an encoder away."""

    name: str  # of the file or folder when the user names none
    write: Callable[[Export], None]
    load: Callable[[Export], Compute]
    usage: Callable[[Export], str]  # lines of Python that load it and compute features of `images`


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}


def _facts(export: Export) -> dict[str, str]:
    """What the file says of itself."""
    data = export.data
    return {
        "architecture": export.architecture,
        "stem": export.config.stem,
        "image_size": str(data.image_size),
        "channels": str(data.channels),
        "mean": json.dumps(data.mean),
        "std": json.dumps(data.std),
    }


def _computing(model: nn.Module) -> Compute:
    @torch.inference_mode()
    def compute(images: Tensor) -> Tensor:
        features: Tensor = model(images)
        return features

    model.eval()
    return compute


# safetensors


def write_safetensors(export: Export) -> None:
    """One file of weights, keys as timm and, for ResNets, torchvision name them."""
    with files.atomic_writer(export.path) as file:
        file.write(save(_weights(export.model), metadata=_facts(export)))


def load_safetensors(export: Export) -> Compute:
    return _load_into_timm(export, export.path)


def use_safetensors(export: Export) -> str:
    return _usage_of_weights(export, export.path)


def _load_into_timm(export: Export, weights: Path) -> Compute:
    model: nn.Module = timm.create_model(export.architecture, **export.arguments)
    if export.config.stem == "small":
        use_small_stem(model, export.data.channels, export.architecture)
    model.load_state_dict(load_file(weights))
    return _computing(model)


def _usage_of_weights(export: Export, weights: Path) -> str:
    arguments = "".join(f", {key}={value!r}" for key, value in export.arguments.items())
    return "\n".join(
        [
            "import timm",
            *(["import torch"] if _stem(export) else []),
            "from safetensors.torch import load_file",
            "",
            f"model = timm.create_model({export.architecture!r}{arguments})",
            *_stem(export),
            f"model.load_state_dict(load_file({str(weights)!r}))",
            "features = model.eval()(images)",
        ]
    )


def _stem(export: Export) -> list[str]:
    """Lines that give a library's ResNet the small stem, where the run has it."""
    if export.config.stem != "small":
        return []
    weight = export.model.get_parameter("conv1.weight")
    return [
        f"model.conv1 = torch.nn.Conv2d({weight.shape[1]}, {weight.shape[0]}, 3, padding=1, bias=False)",
        "model.maxpool = torch.nn.Identity()",
    ]


# timm


def write_timm(export: Export) -> None:
    """A folder of config.json and model.safetensors, as on Hugging Face's hub."""
    data, side = export.data, export.data.image_size
    config = {
        "architecture": export.architecture,
        "num_classes": 0,
        "num_features": int(export.model(export.example).shape[1]),
        "model_args": {key: value for key, value in export.arguments.items() if key != "num_classes"},
        "pretrained_cfg": {
            "input_size": [data.channels, side, side],
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "mean": list(data.mean),
            "std": list(data.std),
            "num_classes": 0,
        },
    }
    path = export.path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", suffix=files.PARTIAL, dir=path.parent) as beside:
        made = Path(beside) / path.name
        files.write_json(made / "config.json", config)
        with files.atomic_writer(made / "model.safetensors") as file:
            file.write(save(_weights(export.model), metadata={"format": "pt", **_facts(export)}))
        if is_timm_export(path):
            shutil.rmtree(path)
        made.rename(path)


def is_timm_export(path: Path) -> bool:
    """Whether a folder is what `write_timm` makes with its card, and holds nothing else."""
    if path.is_symlink() or not path.is_dir():
        return False
    names = {entry.name for entry in path.iterdir()}
    if not {"config.json", "model.safetensors"} <= names <= {"config.json", "model.safetensors", "README.md"}:
        return False
    try:
        with safe_open(path / "model.safetensors", framework="pt") as weights:
            return {"architecture", "stem", "image_size"} <= set(weights.metadata() or {})
    except Exception:  # no weights of ours
        return False


def load_timm(export: Export) -> Compute:
    if export.config.stem == "small":
        return _load_into_timm(export, export.path / "model.safetensors")
    return _computing(timm.create_model(f"local-dir:{export.path}", pretrained=True))


def use_timm(export: Export) -> str:
    if export.config.stem == "small":  # timm has no name for this stem
        return _usage_of_weights(export, export.path / "model.safetensors")
    model = f"timm.create_model({f'local-dir:{export.path}'!r}, pretrained=True)"
    return f"import timm\n\nmodel = {model}.eval()\nfeatures = model(images)"


# torchvision


def _torchvision_model(export: Export) -> nn.Module:
    """torchvision's model of the same name with the run's input and no classifier."""
    name = export.architecture
    if name not in torchvision.models.list_models(module=torchvision.models):
        raise UserError(f"torchvision has no model {name!r}; export with --to timm, safetensors, onnx or torch-export")
    model: nn.Module = torchvision.models.get_model(name, weights=None)
    first = getattr(model, "conv1", None)
    if isinstance(first, nn.Conv2d) and hasattr(model, "fc"):
        model.fc = nn.Identity()
        if export.config.stem == "small":
            use_small_stem(model, export.data.channels, name)
        elif first.in_channels != export.data.channels:
            model.conv1 = nn.Conv2d(export.data.channels, first.out_channels, 7, stride=2, padding=3, bias=False)
    ours, theirs = export.model.state_dict(), model.state_dict()
    if {key: value.shape for key, value in ours.items()} != {key: value.shape for key, value in theirs.items()}:
        raise UserError(f"torchvision names the weights of {name!r} in another way than timm; export with --to timm")
    return model


def write_torchvision(export: Export) -> None:
    """A state dict as torch.save writes it, for the ResNets that timm and torchvision share."""
    _torchvision_model(export)
    buffer = io.BytesIO()
    torch.save(_weights(export.model), buffer)
    with files.atomic_writer(export.path) as file:
        file.write(buffer.getbuffer())


def load_torchvision(export: Export) -> Compute:
    model = _torchvision_model(export)
    model.load_state_dict(torch.load(export.path, weights_only=True))
    return _computing(model)


def use_torchvision(export: Export) -> str:
    stem = _stem(export)
    if not stem and export.data.channels != 3:
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


# onnx

ONNX_NEEDS = ("onnx", "onnxruntime", "onnxscript")


def write_onnx(export: Export) -> None:
    """A graph with the input `images`, any number of them, and the output `features`; weights inside."""
    missing = [name for name in ONNX_NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"--to onnx needs {', '.join(missing)}; install with: pip install 'carl-ssl[onnx]'")
    with _quiet():
        program = torch.onnx.export(
            export.model,
            (export.example,),
            input_names=["images"],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    for key, value in _facts(export).items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value
    with files.atomic_writer(export.path) as file:
        file.write(proto.SerializeToString())


def load_onnx(export: Export) -> Compute:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(export.path), providers=["CPUExecutionProvider"])

    def compute(images: Tensor) -> Tensor:
        (features,) = session.run(None, {"images": images.numpy()})
        return torch.from_numpy(features)

    return compute


def use_onnx(export: Export) -> str:
    return f"""\
import onnxruntime

session = onnxruntime.InferenceSession({str(export.path)!r})
(features,) = session.run(None, {{"images": images}})  # a NumPy array of float32, any number of images"""


# torch-export


def write_torch_export(export: Export) -> None:
    """A torch.export program for any number of images."""
    with _quiet():
        program = torch.export.export(export.model, (export.example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
    with files.atomic_writer(export.path) as file:
        file.write(buffer.getbuffer())


def load_torch_export(export: Export) -> Compute:
    with _quiet():
        return _exported(torch.export.load(str(export.path)).module())


def _exported(model: nn.Module) -> Compute:
    def compute(images: Tensor) -> Tensor:
        with torch.no_grad():
            features: Tensor = model(images)
            return features

    return compute


def use_torch_export(export: Export) -> str:
    return f"import torch\n\nmodel = torch.export.load({str(export.path)!r}).module()\nfeatures = model(images)"


@contextmanager
def _quiet() -> Iterator[None]:
    """Exporters warn of their own affairs."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


FORMATS: dict[str, Format] = {
    "timm": Format("encoder-timm", write_timm, load_timm, use_timm),
    "torchvision": Format("encoder-torchvision.pth", write_torchvision, load_torchvision, use_torchvision),
    "safetensors": Format("encoder.safetensors", write_safetensors, load_safetensors, use_safetensors),
    "onnx": Format("encoder.onnx", write_onnx, load_onnx, use_onnx),
    "torch-export": Format("encoder.pt2", write_torch_export, load_torch_export, use_torch_export),
}
GRAPHS = ("onnx", "torch-export")  # those that can hold more than weights
