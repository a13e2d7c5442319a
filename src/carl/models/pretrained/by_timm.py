"""A model of timm with published weights: timm:NAME, timm:NAME@FILE, timm:hf-hub:ORG/NAME and hf-hub:ORG/NAME.

Weights are looked for in this order: the file that is named, a file that the user put into the cache folder, a package
of the extra `weights`, the caches of timm, and the network, if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import timm
from timm.models import PretrainedCfg, load_model_config_from_hf
from torch import Tensor, nn

from carl.errors import UserError, first_line
from carl.models.architectures import known_architecture, published
from carl.models.pretrained import hub, pip_weights
from carl.models.pretrained.weights import (
    UNKNOWN_LICENCE,
    Kind,
    PretrainedWeights,
    ReadState,
    check_backbone,
    wanted_by_timm,
)
from carl.user_paths import expanded

TIMM, HUB = "timm:", "hf-hub:"


def recognises(given: str) -> bool:
    return given == "timm" or given.startswith((TIMM, HUB))


def find(given: str, backbone: str | None) -> PretrainedWeights:
    name = given.removeprefix(TIMM) if given != "timm" else backbone or ""
    if given == "timm" and not name:
        raise UserError("`timm` does not say which model; write timm:NAME, such as timm:resnet18")
    if name.startswith(HUB):
        return _on_the_hub(given, name)
    name, at, file = name.partition("@")
    if at and not file:
        raise UserError(
            f"{given}: there is no file after the @; give a .safetensors or .pth file there, or leave the @ out"
        )
    known = known_architecture(name)
    if given != "timm" and backbone != known:
        check_backbone(backbone, name, given)
    config = published(name)
    values = config.to_dict()
    read, origin = _source(given, name, known, file, config)
    return PretrainedWeights(
        name=given,
        backbone=name,
        stem="imagenet",
        wanted=wanted_by_timm(values),
        origin=origin,
        licence=config.license or UNKNOWN_LICENCE,
        state=read,
    )


def _source(given: str, name: str, known: str, file: str, config: PretrainedCfg) -> tuple[ReadState, str]:
    """What reads the weights, and where they are from in words."""
    path = expanded(file) if file else hub.placed_by_user(config)
    if path is not None:
        if not path.is_file():
            raise UserError(f"{given}: there is no file {file!r}; give a .safetensors or .pth file after the @")
        return lambda channels, image_size: pip_weights.read_file(known, path), f"the file {path.name}"
    package = pip_weights.installed(known)
    if package is not None:
        return lambda channels, image_size: package.state(), package.origin
    hub.check_within_reach(given, known, config)
    repository, values = config.hf_hub_id or "", config.to_dict()
    return _reader(given, name, repository, values, hub.how_to_fetch(config)), f"timm, {hub.address(config)}"


def _on_the_hub(given: str, name: str) -> PretrainedWeights:
    """A model that someone published on the Hugging Face hub, as timm loads it."""
    repository = name.removeprefix(HUB)
    hub.check_repository_within_reach(given, repository)
    with hub.without_network_if_cached(repository, "config.json"):
        try:
            values, architecture, _ = load_model_config_from_hf(repository)
        except Exception as error:  # the hub's client has many errors of its own
            reason = first_line(error)
            raise UserError(f"{given} cannot be opened: {reason}; check the name on the hub") from None
    known_architecture(architecture)
    return PretrainedWeights(
        name=given,
        backbone=architecture,
        stem="imagenet",
        wanted=wanted_by_timm(values),
        origin=f"the Hugging Face hub, {repository}",
        licence=str(values.get("license") or UNKNOWN_LICENCE),
        state=_reader(given, name, repository, values),
    )


def _reader(
    given: str,
    name: str,
    repository: str,
    config: Mapping[str, Any],
    remedy: str = "check the name, or give timm:NAME@FILE",
) -> ReadState:
    """Reads the weights as timm loads them, with the classifier: without it, timm lets weights pass that do not fit."""

    def read(channels: int, image_size: int) -> dict[str, Tensor]:
        options: dict[str, Any] = {"in_chans": channels}
        if config.get("fixed_input_size"):
            options["img_size"] = image_size
        with hub.without_network_if_cached(repository, *hub.file_names(config)):
            try:
                model: nn.Module = timm.create_model(name, pretrained=True, **options)
            except Exception as error:  # timm, torch and the hub's client each have errors of their own
                raise UserError(f"timm cannot load {given}: {first_line(error).rstrip('.')}; {remedy}") from None
        return dict(model.state_dict())

    return read


BY_TIMM = Kind(recognises, find)
