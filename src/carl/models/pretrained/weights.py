"""What is known about weights that exist: the architecture they fit, the images they want, and where they are from."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import TypeAdapter
from timm.data.config import resolve_data_config
from torch import Tensor

from carl.defaults import LARGEST_SIDE, Stem
from carl.errors import UserError, printable
from carl.framing import Framing, Interpolation

ReadState = Callable[[int, int], dict[str, Tensor]]  # of channels and image size: the weights by timm's names
LICENCE_OF_RUNS = "that of the images, and of the weights if it started from any"
LONGEST_WORDS = 400  # of an origin or a licence that a file states: it may be from anyone
UNKNOWN_LICENCE = "not known to this package; the one of the weights applies"


@dataclass(frozen=True)
class WantedInput:
    """The images that weights were trained on, so that they see the same in use."""

    framing: Framing
    image_size: int  # side of what the encoder sees
    mean: tuple[float, ...]  # per channel, for values in [0, 1]
    std: tuple[float, ...]

    @property
    def channels(self) -> int:
        return len(self.mean)

    def check(self) -> None:
        """Raise a ValueError for values that no weights can want: some are read from files of others."""
        sides = (self.image_size, *self.framing.shape, *(self.framing.scaled or ()))
        if not all(1 <= side <= LARGEST_SIDE for side in sides):
            raise ValueError(f"sides of {sides} px")
        if not len(self.mean) == len(self.std) >= 1 or min(self.std) <= 0:
            raise ValueError(f"mean {self.mean} and std {self.std}")
        if not all(map(math.isfinite, (*self.mean, *self.std))):
            raise ValueError(f"mean {self.mean} and std {self.std}")
        if self.framing.interpolation not in get_args(Interpolation):
            raise ValueError(f"interpolation {self.framing.interpolation!r}")


@dataclass(frozen=True, eq=False)
class PretrainedWeights:
    """Weights that are found, not loaded yet."""

    name: str  # as the user gave it
    backbone: str  # name of a timm model
    stem: Stem
    wanted: WantedInput
    origin: str  # where the weights are from, in words
    licence: str
    state: ReadState


@dataclass(frozen=True)
class Source:
    """Where weights are from, and their licence, in words for a model card."""

    origin: str
    licence: str


def stated(backbone: str, stem: str, wanted: WantedInput, source: Source | None = None) -> dict[str, str]:
    """What a .safetensors file of ours says about itself, so that it can be used alone."""
    return {
        "architecture": backbone.split(".")[0],  # without the name of pretrained weights
        "stem": stem,
        "image_size": str(wanted.image_size),
        "channels": str(wanted.channels),
        "mean": json.dumps(wanted.mean),
        "std": json.dumps(wanted.std),
        "framing": json.dumps(dataclasses.asdict(wanted.framing)),
        **({} if source is None else dataclasses.asdict(source)),
    }


def read_stated(facts: Mapping[str, str]) -> WantedInput | None:
    """The input that such a file states, if it does so in a way that can be true."""
    try:
        side = int(facts["image_size"])
        mean, std = (tuple(map(float, json.loads(facts[key]))) for key in ("mean", "std"))
        framing = TypeAdapter(Framing).validate_json(facts["framing"]) if "framing" in facts else Framing(side, side)
        wanted = WantedInput(framing, side, mean, std)
        wanted.check()
    except (KeyError, ValueError, TypeError, RecursionError):
        return None
    return wanted if facts.get("channels") == str(wanted.channels) else None


def source_in(facts: Mapping[str, Any]) -> Source | None:
    """The source that a file or a run states, if it does."""
    found = [facts.get(key) for key in ("origin", "licence")]
    if not all(isinstance(words, str) and words for words in found):
        return None
    origin, licence = (printable(str(words))[:LONGEST_WORDS] for words in found)
    return Source(origin, licence)


@dataclass(frozen=True)
class Kind:
    """One way to name weights: whether a word is such a name, and the weights of this name, for a backbone if given."""

    recognises: Callable[[str], bool]
    find: Callable[[str, str | None], PretrainedWeights]


def check_backbone(given: str | None, own: str, of: object) -> None:
    """Refuse a --backbone for weights that have an architecture of their own, unless it is the same."""
    if given not in (None, own):
        raise UserError(f"--backbone {given} is not that of {of}, {own}; leave it out")


def wanted_by_timm(config: Mapping[str, Any]) -> WantedInput:
    """The input of a `pretrained_cfg`, for which `Framing` does what timm's evaluation does."""
    found = resolve_data_config(pretrained_cfg=dict(config))
    _, height, width = found["input_size"]
    mean, std = tuple(map(float, found["mean"])), tuple(map(float, found["std"]))
    scaled = math.floor(height / found["crop_pct"]), math.floor(width / found["crop_pct"])
    fits: dict[str, Literal["cut", "stretch", "pad"]] = {"squash": "stretch", "border": "pad"}
    fill = tuple(round(255 * value) for value in mean)
    framing = Framing(height, width, scaled, fits.get(found["crop_mode"], "cut"), found["interpolation"], fill)
    wanted = WantedInput(framing, max(height, width), mean, std)
    wanted.check()
    return wanted
