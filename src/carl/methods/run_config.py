"""The configuration that a run keeps: read with its method's options, with paths that hold from anywhere."""

from __future__ import annotations

import os

from carl.config import BEFORE, Config, Layer, merge, resolve
from carl.data.open import absolute_source
from carl.defaults import METHOD
from carl.errors import UserError
from carl.methods import find_method
from carl.records.run_directory import RunDirectory
from carl.user_paths import expanded


def read_config(run: RunDirectory) -> Config:
    """The configuration of a run, with the options of its method."""
    layer = run.read_layer()
    name = str(layer.get("method", {}).get("name", METHOD))
    try:
        return resolve([BEFORE, layer], find_method(name).Options)
    except UserError as error:
        raise UserError(f"{run.config_file}: {error}") from None


def with_absolute_paths(layer: Layer) -> Layer:
    """The layer with files and folders named in full, so that a run can be resumed from anywhere."""
    source, init = layer.get("data", {}).get("source"), layer.get("model", {}).get("init")
    named: dict[str, dict[str, str]] = {}
    if isinstance(source, str):
        named["data"] = {"source": absolute_source(source)}
    if isinstance(init, str):
        named["model"] = {"init": absolute_encoder(init)}
    return merge([layer, named])


def absolute_encoder(given: str) -> str:
    """The name of an encoder with its file or folder named in full."""
    model, _, file = given.partition("@")
    if given.startswith("timm:") and file and os.path.exists(expanded(file)):
        return f"{model}@{expanded(file).resolve()}"
    return str(expanded(given).resolve()) if given and os.path.exists(expanded(given)) else given
