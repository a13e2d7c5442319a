"""An export format: the weights as NumPy's own archive."""

from __future__ import annotations

import numpy as np
import torch

from carl import files
from carl.use.export.format import Compute, Export, Format, computing


def write(export: Export) -> None:
    with files.atomic_writer(export.path) as file:
        np.savez(file, **{key: value.numpy() for key, value in export.weights.items()})


def load(export: Export) -> Compute:
    with np.load(export.path, allow_pickle=False) as arrays:
        export.model.load_state_dict({key: torch.from_numpy(arrays[key]) for key in arrays.files})
    return computing(export.model)


def usage(export: Export) -> str:
    return f"import numpy\n\nweights = numpy.load({str(export.path)!r})"


TOY_FORMAT = Format("weights for NumPy", "encoder.npz", write, load, usage)
