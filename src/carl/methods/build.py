"""From a configuration to a method with its encoder."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

from carl.config import Config, Layer, merge, resolve
from carl.data.configured import load_data
from carl.data.dataset import Dataset
from carl.data.facts import DataFacts
from carl.data.open import absolute_source
from carl.errors import UserError
from carl.memory import keep_freed_memory
from carl.methods import Method, find_method
from carl.records.run_directory import RunDirectory


def read_config(run: RunDirectory) -> Config:
    """The configuration of a run, with the options of its method."""
    layer = run.read_layer()
    name = str(layer.get("method", {}).get("name", "carl"))
    try:
        return resolve([layer], find_method(name).Options)
    except UserError as error:
        raise UserError(f"{run.config_file}: {error}") from None


def load_data_for(config: Config) -> Dataset:
    """The data of a configuration: the labelled images alone for a method that needs labels."""
    name = config.method.name
    return load_data(config.data, name if find_method(name).needs_labels else None)


def with_absolute_paths(layer: Layer) -> Layer:
    """The layer with files and folders named in full, so that a run can be resumed from anywhere."""
    source, init = layer.get("data", {}).get("source"), layer.get("model", {}).get("init")
    named: dict[str, dict[str, str]] = {}
    if isinstance(source, str):
        named["data"] = {"source": absolute_source(source)}
    if isinstance(init, str) and init != "timm" and os.path.exists(init):
        named["model"] = {"init": str(Path(init).resolve())}
    return merge([layer, named])


def build_method(config: Config, facts: DataFacts, device: torch.device) -> Method:
    """The method as `train.seed` makes it."""
    if device.type == "cpu":
        keep_freed_memory()
    torch.manual_seed(config.train.seed)
    method = find_method(config.method.name)(config, facts).to(device)
    if config.train.channels_last:
        method.to(memory_format=torch.channels_last)
    if config.train.compile:
        method.encoder.compile()
    return method


def without_init(config: Config) -> Config:
    """The configuration without starting weights, for when others will be loaded."""
    return config.model_copy(update={"model": config.model.model_copy(update={"init": None})})


def random_encoder(config: Config, facts: DataFacts, device: torch.device) -> nn.Module:
    """The run's encoder as it was before training (or, with --init, before those weights)."""
    state = torch.get_rng_state()
    torch.manual_seed(config.train.seed)
    encoder = find_method(config.method.name)(without_init(config), facts).encoder.to(device)
    torch.set_rng_state(state)
    return encoder
