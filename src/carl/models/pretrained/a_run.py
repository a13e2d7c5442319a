"""The encoder of a run directory, or one of those that the run kept: RUN, RUN/encoders/epoch-0100.safetensors."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from carl.defaults import BACKBONE, STEM
from carl.errors import UserError
from carl.framing import Framing
from carl.models.pretrained.weights import (
    LICENCE_OF_RUNS,
    LONGEST_WORDS,
    Kind,
    PretrainedWeights,
    Source,
    WantedInput,
    check_backbone,
    source_in,
)
from carl.models.state_dicts import read_weights
from carl.records.run_directory import DataRecord, RunDirectory
from carl.user_paths import expanded


def recognises(given: str) -> bool:
    path = expanded(given)
    return (bool(given) and path.is_dir()) or RunDirectory.containing(path) is not None


def wanted_by_run(record: DataRecord) -> WantedInput:
    """The images that a run's encoder wants to see: those that it was trained on."""
    framing = Framing(record.height, record.width, interpolation=record.interpolation)
    return WantedInput(framing, record.image_size, record.mean, record.std)


def source_of_run(run: RunDirectory, record: DataRecord) -> Source:
    """The run and its images, with the weights that it started from: their licence may bind its own."""
    name = f"the run {run.path.absolute().name}, trained on {Path(record.name).name}"
    return _after_start(run, name) or Source(name, LICENCE_OF_RUNS)


def source_in_run(run: RunDirectory) -> Source | None:
    """What the encoder's file says of its source: the start alone, since equal runs of any name have equal files."""
    return _after_start(run, "a run")


def _after_start(run: RunDirectory, name: str) -> Source | None:
    given = run.read_environment().get("started_from")
    start = source_in(given) if isinstance(given, dict) else None
    if start is None:
        return None
    origin = f"{name}, which started from {start.origin}"
    licence = f"that of the images, and of the starting weights: {start.licence}"
    return Source(origin[:LONGEST_WORDS], licence[:LONGEST_WORDS])


def find(given: str, backbone: str | None) -> PretrainedWeights:
    path = expanded(given)
    run = RunDirectory.containing(path) or RunDirectory.open(path)
    model = run.read_layer().get("model", {})
    own, stem = str(model.get("backbone", BACKBONE)), model.get("stem", STEM)
    check_backbone(backbone, own, run.path)
    file, record = run.trained_encoder(None if path.is_dir() else path), run.read_data()
    if record is None:
        raise UserError(
            f"{run.path} is from before runs wrote data.json, so what its encoder wants to see is not known; give "
            f"{run.encoder_file} a name of its own and use it with --backbone {own}"
        )

    source = source_of_run(run, record)

    def state(channels: int, image_size: int) -> dict[str, Tensor]:
        return read_weights(file)

    return PretrainedWeights(
        name=given,
        backbone=own,
        stem="small" if stem == "small" else "imagenet",
        wanted=wanted_by_run(record),
        origin=source.origin,
        licence=source.licence,
        state=state,
    )


RUN = Kind(recognises, find)
