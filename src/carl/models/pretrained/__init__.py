"""Weights that exist, whatever they are in: one function finds all kinds of them, each of which has a file here."""

from __future__ import annotations

import os

import timm

from carl.config import ModelConfig
from carl.defaults import ENCODERS
from carl.errors import UserError
from carl.models.pretrained.a_run import RUN, source_in_run, source_of_run, wanted_by_run
from carl.models.pretrained.a_weights_file import WEIGHTS_FILE, states_architecture
from carl.models.pretrained.by_timm import BY_TIMM
from carl.models.pretrained.weights import Kind, PretrainedWeights, Source, WantedInput, check_backbone, stated
from carl.records.run_directory import RunDirectory
from carl.user_paths import expanded

__all__ = [
    "KINDS",
    "PretrainedWeights",
    "Source",
    "WantedInput",
    "check_backbone",
    "find_weights",
    "is_bare_file",
    "source_in_run",
    "source_of_run",
    "stated",
    "usual_backbone",
    "wanted_by_run",
]

# The first kind that recognises what the user gave is asked for the weights.
KINDS: dict[str, Kind] = {
    "RUN": RUN,
    "timm:NAME": BY_TIMM,
    "FILE": WEIGHTS_FILE,
}


def is_bare_file(given: str) -> bool:
    """Whether this is a weights file that does not say which architecture it is for, so that the user has to."""
    path = expanded(given)
    return path.is_file() and RunDirectory.containing(path) is None and not states_architecture(path)


def usual_backbone(given: str) -> str | None:
    """The architecture that is meant if the user names none: the default for a bare file and for `timm` alone."""
    return ModelConfig().backbone if given == "timm" or is_bare_file(given) else None


def find_weights(given: str, backbone: str | None = None) -> PretrainedWeights:
    """The weights that the user names: a run directory, a weights file of `backbone`, or a model of timm.

    Nothing is loaded yet, but what is missing, unknown or out of reach is said here.
    """
    kind = next((kind for kind in KINDS.values() if kind.recognises(given)), None)
    if kind is None:
        exists = given and os.path.lexists(expanded(given))
        what = "is neither a run directory nor a weights file" if exists else "does not exist"
        model = timm.is_model(given.split(".")[0])
        remedy = f"did you mean timm:{given}?" if model else f"give {ENCODERS}"
        raise UserError(f"{given or repr(given)} {what}; {remedy}")
    return kind.find(given, backbone)
