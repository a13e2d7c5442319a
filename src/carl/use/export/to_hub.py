"""The folder that timm loads by hf-hub:USER/NAME, and its way to the Hugging Face hub."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

from carl.errors import UserError, first_line
from carl.use.export import to_timm
from carl.use.export.format import Compute, Export, Format

PACKAGES = ("huggingface_hub",)
NAME = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}", re.ASCII)  # what the hub takes; the rest it says itself


def write(export: Export) -> None:
    if export.config.stem == "small":
        raise UserError("timm cannot load model.stem=small from a hub; use --to safetensors and upload that file")
    to_timm.write(export)


def load(export: Export) -> Compute:
    return to_timm.load(export)


def usage(export: Export) -> str:
    if not export.address:
        return to_timm.usage(export)
    model = f"timm.create_model({f'hf-hub:{export.address}'!r}, pretrained=True)"
    return f"import timm\n\nmodel = {model}.eval()\nfeatures = model(images)"


def card_head(export: Export) -> str:
    """What the hub reads in a card, so that it lists the model among timm's."""
    licence = export.source.licence.lower()
    known = licence if licence in ("mit", "apache-2.0", "cc-by-4.0", "cc-by-nc-4.0") else "other"
    lines = ["library_name: timm", "pipeline_tag: image-feature-extraction", f"license: {known}"]
    return "\n".join(["---", "tags: [timm, carl]", *lines, "---", "", ""])


def publisher(address: str) -> Callable[[Path], str]:
    """What uploads a folder to the repository `address`; name, package and login are checked at once."""
    if any(importlib.util.find_spec(name) is None for name in PACKAGES):
        raise UserError("--to hub:USER/NAME needs huggingface_hub; get it with: pip install 'carl-ssl[hub]'")
    import huggingface_hub

    if not NAME.fullmatch(address):
        raise UserError(f"--to hub:{address} does not name a repository; write --to hub:USER/NAME")
    if huggingface_hub.get_token() is None:
        raise UserError(
            f"--to hub:{address} needs a login; run `hf auth login`, or set HF_TOKEN to a token that may write"
        )
    return lambda folder: upload(folder, address)


def upload(folder: Path, address: str) -> str:
    """Where the folder is now. A repository that is new is private until its owner opens it."""
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(address, private=True, exist_ok=True)
        api.upload_folder(repo_id=address, folder_path=folder, commit_message="Encoder exported by carl")
    except Exception as error:  # the hub's client has many errors of its own, and those of its HTTP library
        reason = first_line(error).rstrip(".")
        raise UserError(
            f"{folder} is written but was not uploaded to {address}: {reason}; check the name, the token's rights and "
            "the network, then export again with --force"
        ) from None
    return f"{api.endpoint}/{address}"


HUB = Format(
    words="the same for the Hugging Face hub, uploaded if you write hub:USER/NAME",
    file_name="encoder-hub",
    write=write,
    load=load,
    usage=usage,
    is_own_folder=to_timm.is_own_folder,
    card_head=card_head,
    publisher=publisher,
)
