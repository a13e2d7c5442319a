"""From a configuration and the facts of its data to a method with its encoder."""

from __future__ import annotations

import torch
from torch import nn

from carl.config import Config
from carl.data.facts import DataFacts
from carl.memory import keep_freed_memory
from carl.methods import Method, find_method


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
