"""The encoder in other programs' formats: written, loaded again by that program, and compared."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from carl import files
from carl.errors import UserError, suggestion
from carl.models.encoders import build_encoder
from carl.models.pretrained import Source, WantedInput
from carl.use.encoder import UsableEncoder, open_encoder
from carl.use.export import FORMATS
from carl.use.export.format import Export, Format
from carl.use.export.model_card import model_card
from carl.use.requests import ExportRequest

TOLERANCE = 1e-4  # largest difference of a feature, relative to the largest feature where that is above 1
CHECKED = (5, 1)  # sizes of the batches that are compared: other than the 2 of the example


@dataclass(frozen=True)
class Exported:
    """What was written, and how far it is from the encoder itself."""

    path: Path
    card: Path
    difference: float  # largest of all features that were compared
    usage: str


class Normalised(nn.Module):
    """The encoder with normalisation in front: images in [0, 1] to features."""

    mean: Tensor
    std: Tensor

    def __init__(self, encoder: nn.Module, wanted: WantedInput) -> None:
        super().__init__()
        self.encoder = encoder
        self.register_buffer("mean", torch.tensor(wanted.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(wanted.std).view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.encoder((images - self.mean) / self.std)
        return features


def export_encoder(request: ExportRequest) -> Iterator[str]:
    """Write an encoder for another program; yields lines about it."""
    publish = find_publisher(request.format)  # an unknown format or address is refused before the model is loaded
    usable = open_encoder(request.encoder, backbone=request.backbone, device="cpu")
    done = export(usable, request.format, request.output, normalise=request.normalise, force=request.force)
    yield f"written: {done.path}"
    yield f"checked: loaded again, features differ by at most {done.difference:.1e}"
    yield f"card: {done.card}"
    if publish is not None:
        yield f"uploaded: {publish(done.path)}"
    yield ""
    yield from done.usage.split("\n")


def find_format(given: str) -> tuple[str, Format, str]:
    """Name, format and address of what the user wrote: `timm`, or `hub:USER/NAME`."""
    name, colon, address = given.partition(":")
    if name not in FORMATS:
        raise UserError(f"unknown format {name!r}{suggestion(name, FORMATS)}")
    if colon and FORMATS[name].publisher is None:
        raise UserError(f"--to {given}: {name} is not uploaded anywhere; write --to {name}")
    return name, FORMATS[name], address


def find_publisher(given: str) -> Callable[[Path], str] | None:
    """What uploads an export, if the user named a place for it."""
    _, form, address = find_format(given)
    return form.publisher(address) if form.publisher is not None and ":" in given else None


def export(
    usable: UsableEncoder, given: str, output: Path | None, normalise: bool = False, force: bool = False
) -> Exported:
    """Write the encoder in the format that is named, and a card; loaded again, it must give the same features.

    With `normalise`, which needs a graph, the export takes images in [0, 1] and normalises them itself.
    """
    name, form, address = find_format(given)
    if normalise and not form.is_graph:
        graphs = " or ".join(known for known, other in FORMATS.items() if other.is_graph)
        raise UserError(f"--normalise adds to a graph, and {name} holds only weights; leave it out, or use {graphs}")
    path = output or default_folder(usable) / form.file_name
    check_target(path, name, force)
    encoder = plain_encoder(usable)
    model = Normalised(encoder, usable.wanted).eval() if normalise else encoder
    source = Source(usable.origin, usable.licence)
    made = Export(model, usable.model, usable.wanted, path, source=source, address=address)
    form.write(made)
    try:
        difference = _largest_difference(made, form, in_unit_range=normalise)
    except BaseException:  # nothing wrong is left to be used
        shutil.rmtree(path) if path.is_dir() else files.end_of_links(path).unlink(missing_ok=True)
        raise
    usage, card = form.usage(made), form.card_file(path)
    features = int(model(made.example).shape[1])
    head = "" if form.card_head is None else form.card_head(made)
    text = model_card(usable, name, usage, features=features, normalised=normalise, difference=difference)
    files.write_text(card, head + text)
    return Exported(path, card, difference, usage)


def check_target(path: Path, name: str, force: bool) -> None:
    """Refuse a path where something exists; with `force`, only what is not an export to this format."""
    form = FORMATS[name]
    if path.name in ("", ".."):
        raise UserError(f"-o {str(path)!r} has no name of its own; give the export one, such as {form.file_name}")
    taken = next((place for place in (path, form.card_file(path)) if os.path.lexists(place)), None)
    if taken is None:
        return
    if not force:
        raise UserError(f"{taken} exists; choose another -o, or replace it with --force")
    if os.path.lexists(path) and not form.may_replace(path):
        raise UserError(f"{path} is not an export to {name}, so --force does not replace it; choose another -o")


def default_folder(usable: UsableEncoder) -> Path:
    """Where an export goes if the user names no place: into the run, or a folder named after the encoder."""
    if usable.run is not None:
        return usable.run.path / "export"
    return Path("export") / files.portable_name(Path(usable.name).name)


def plain_encoder(usable: UsableEncoder) -> nn.Module:
    """The encoder on the CPU with plain convolutions only: an export may run anywhere."""
    config = usable.model.model_copy(update={"tiny_maps": False, "init": None})
    with torch.random.fork_rng(devices=[]):
        encoder = build_encoder(config, usable.channels, usable.image_size)
    encoder.load_state_dict(usable.encoder.state_dict())  # the fast convolutions have the same keys
    return encoder.eval().requires_grad_(False)


def _largest_difference(made: Export, form: Format, in_unit_range: bool) -> float:
    """The largest difference between the features of the model and those of what was written."""
    compute, largest = form.load(made), 0.0
    generator = torch.Generator().manual_seed(0)
    draw = torch.rand if in_unit_range else torch.randn
    for count in CHECKED:
        images = draw((count, *made.example.shape[1:]), generator=generator)
        with torch.inference_mode():
            expected = made.model(images)
        difference = (compute(images) - expected).abs().max().item()
        if not difference <= TOLERANCE * max(1.0, expected.abs().max().item()):
            raise RuntimeError(f"{made.path} was written but gives features that differ by {difference:.2g}")
        largest = max(largest, difference)
    return largest
