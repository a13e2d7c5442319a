"""An encoder in the formats of other programs. Importing this imports no torch."""

from carl.use.export.format import Export, Format
from carl.use.export.to_hub import HUB
from carl.use.export.to_onnx import ONNX
from carl.use.export.to_safetensors import SAFETENSORS
from carl.use.export.to_timm import TIMM
from carl.use.export.to_torch_export import TORCH_EXPORT
from carl.use.export.to_torchvision import TORCHVISION

__all__ = ["FORMATS", "Export", "Format"]

FORMATS: dict[str, Format] = {  # by their names after --to
    "timm": TIMM,
    "hub": HUB,
    "torchvision": TORCHVISION,
    "safetensors": SAFETENSORS,
    "onnx": ONNX,
    "torch-export": TORCH_EXPORT,
}
