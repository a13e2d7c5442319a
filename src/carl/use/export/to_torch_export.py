"""A torch.export program for any number of images: it runs without timm and without this package."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from carl import files
from carl.use.export.format import Compute, Export, Format

if TYPE_CHECKING:
    from torch import Tensor


def write(export: Export) -> None:
    import torch

    with quiet():
        program = torch.export.export(export.model, (export.example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
    with files.atomic_writer(export.path) as file:
        file.write(buffer.getbuffer())


def load(export: Export) -> Compute:
    import torch

    with quiet():
        model = torch.export.load(str(export.path)).module()

    def compute(images: Tensor) -> Tensor:
        with torch.no_grad():
            features: Tensor = model(images)
            return features

    return compute


def usage(export: Export) -> str:
    return f"import torch\n\nmodel = torch.export.load({str(export.path)!r}).module()\nfeatures = model(images)"


@contextmanager
def quiet() -> Iterator[None]:
    """Silences the exporters' warnings, which are about their own workings."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


TORCH_EXPORT = Format(
    words="a graph that torch runs without timm",
    file_name="encoder.pt2",
    write=write,
    load=load,
    usage=usage,
    is_graph=True,
)
