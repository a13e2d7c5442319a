"""A graph with the input `images`, any number of them, and the output `features`; the weights are inside."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from carl import files
from carl.errors import UserError
from carl.use.export.format import Compute, Export, Format
from carl.use.export.to_torch_export import quiet

if TYPE_CHECKING:
    from torch import Tensor

PACKAGES = ("onnx", "onnxruntime", "onnxscript")  # of the extra `onnx`


def write(export: Export) -> None:
    import torch

    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"--to onnx needs {', '.join(missing)}; install with: pip install 'carl-ssl[onnx]'")
    with quiet():
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
    for key, value in export.facts.items():
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value
    with files.atomic_writer(export.path) as file:
        file.write(proto.SerializeToString())


def load(export: Export) -> Compute:
    import onnxruntime
    import torch

    session = onnxruntime.InferenceSession(str(export.path), providers=["CPUExecutionProvider"])

    def compute(images: Tensor) -> Tensor:
        (features,) = session.run(None, {"images": images.numpy()})
        return torch.from_numpy(features)

    return compute


def usage(export: Export) -> str:
    return f"""\
import onnxruntime

session = onnxruntime.InferenceSession({str(export.path)!r})
(features,) = session.run(None, {{"images": images}})  # a NumPy array of float32, any number of images"""


ONNX = Format(
    words="a graph that onnxruntime runs without torch",
    file_name="encoder.onnx",
    write=write,
    load=load,
    usage=usage,
    is_graph=True,
)
