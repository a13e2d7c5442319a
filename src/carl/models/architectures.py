"""The architectures that timm knows by name, and what it knows about their published weights."""

from __future__ import annotations

import difflib

import timm
from timm.models import PretrainedCfg

from carl.errors import UserError, suggestion


def known_architecture(name: str) -> str:
    """The architecture in the name of a timm model, such as resnet18 in resnet18.a1_in1k; an unknown one is refused."""
    base = name.split(".")[0]
    if not timm.is_model(base):
        raise UserError(f"unknown backbone {name!r} in timm{_nearest_model(base)}")
    return base


def _nearest_model(name: str) -> str:
    close = difflib.get_close_matches(name, timm.list_models(), n=1)
    return f"; did you mean {close[0]!r}?" if close else "; timm.list_models() in Python lists them"


def published(name: str) -> PretrainedCfg:
    """What timm knows about the weights of this name, such as resnet18.a1_in1k; an unknown tag is refused."""
    known = known_architecture(name)
    try:
        config = timm.get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError:
        tags = timm.list_pretrained(f"{known}.*")
        raise UserError(f"timm has no weights {name!r}{suggestion(name, tags) if tags else ''}") from None
    return config or PretrainedCfg(architecture=known)
