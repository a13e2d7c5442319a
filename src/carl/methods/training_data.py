"""The images that a method trains on."""

from __future__ import annotations

from carl.config import Config
from carl.data.configured import load_data
from carl.data.dataset import Dataset
from carl.methods import find_method


def load_data_for(config: Config) -> Dataset:
    """The data of a configuration: the labelled images alone for a method that needs labels."""
    name = config.method.name
    return load_data(config.data, name if find_method(name).needs_labels else None)
