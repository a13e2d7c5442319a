"""The encoder in other programs' formats: written, loaded again by that program, and compared."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from carl import files
from carl.errors import UserError, suggestion
from carl.models.encoders import build_encoder
from carl.models.weights import read_weights_into
from carl.records.run_directory import DataRecord
from carl.use.encoder import Trained
from carl.use.export.formats import FORMATS, GRAPHS, Export, is_timm_export
from carl.use.export.model_card import model_card

TOLERANCE = 1e-4  # largest difference of a feature; of the largest feature where that is above 1
CHECKED = (5, 1)  # images in the batches that are compared: other numbers than the 2 of the example


@dataclass(frozen=True)
class Exported:
    """What was written, and how far it is from the run's own encoder."""

    path: Path
    card: Path
    difference: float  # largest of all features that were compared
    usage: str


class Normalised(nn.Module):
    """The encoder with normalisation in front: images in [0, 1] to features."""

    mean: Tensor
    std: Tensor

    def __init__(self, encoder: nn.Module, data: DataRecord) -> None:
        super().__init__()
        self.encoder = encoder
        self.register_buffer("mean", torch.tensor(data.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(data.std).view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.encoder((images - self.mean) / self.std)
        return features


def export(trained: Trained, form: str, output: Path | None, normalise: bool = False, force: bool = False) -> Exported:
    """Write the encoder as `form` with a card beside it; it must give the same features when it is loaded again.

    With `normalise` the graph of `onnx` and `torch-export` takes images in [0, 1] and normalises them itself.
    """
    if form not in FORMATS:
        raise UserError(f"unknown format {form!r}{suggestion(form, FORMATS)}")
    if normalise and form not in GRAPHS:
        raise UserError(
            f"--normalise adds to a graph, and {form} holds weights alone; use it with {' or '.join(GRAPHS)}"
        )
    path = output or trained.run.path / "export" / FORMATS[form].name
    check_target(path, form, force)
    encoder = plain_encoder(trained)
    model = Normalised(encoder, trained.data).eval() if normalise else encoder
    plan = Export(model, trained.config.model, trained.data, path)
    FORMATS[form].write(plan)
    try:
        difference = _compared(plan, form, normalise)
    except BaseException:  # nothing wrong is left to be used
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        raise
    usage = FORMATS[form].usage(plan)
    card = _card(path, form)
    features = int(model(plan.example).shape[1])
    files.write_text(card, model_card(trained, form, usage, features, normalise, difference))
    return Exported(path, card, difference, usage)


def check_target(path: Path, form: str, force: bool) -> None:
    """Refuse a place that holds anything; with `force`, what is not an export of this form."""
    if path.name in ("", ".."):
        raise UserError(f"-o {str(path)!r} has no name of its own; give the export one, such as {FORMATS[form].name}")
    taken = next((place for place in (path, _card(path, form)) if os.path.lexists(place)), None)
    if taken is None:
        return
    if not force:
        raise UserError(f"{taken} exists; choose another -o, or replace it with --force")
    replaceable = is_timm_export(path) if form == "timm" else not path.is_dir()
    if os.path.lexists(path) and not replaceable:
        raise UserError(f"{path} is not an export to {form}, so --force does not replace it; choose another -o")


def _card(path: Path, form: str) -> Path:
    return path / "README.md" if form == "timm" else path.with_name(f"{path.name}.md")


def plain_encoder(trained: Trained) -> nn.Module:
    """The run's encoder on the CPU with plain convolutions only: an export may run anywhere."""
    config = trained.config.model.model_copy(update={"tiny_maps": False, "init": None})
    with torch.random.fork_rng(devices=[]):
        encoder = build_encoder(config, trained.data.channels, trained.data.image_size)
    read_weights_into(trained.run.encoder_file, encoder)
    return encoder.eval().requires_grad_(False)


def _compared(plan: Export, form: str, in_unit_range: bool) -> float:
    """The largest difference between the features of the model and of what was written."""
    compute, largest = FORMATS[form].load(plan), 0.0
    generator = torch.Generator().manual_seed(0)
    draw = torch.rand if in_unit_range else torch.randn
    for count in CHECKED:
        images = draw((count, *plan.example.shape[1:]), generator=generator)
        with torch.inference_mode():
            expected = plan.model(images)
        difference = (compute(images) - expected).abs().max().item()
        if not difference <= TOLERANCE * max(1.0, expected.abs().max().item()):
            raise RuntimeError(f"{plan.path} was written but gives features that differ by {difference:.2g}")
        largest = max(largest, difference)
    return largest
