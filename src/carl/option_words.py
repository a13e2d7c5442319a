"""Words about options: which methods and presets there are, and how a value without an option of its own is set.

Nothing here imports more than it must, because `carl --help` should be quick.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import click

from carl.defaults import ADAPT, ENCODERS

# What stands for ENCODER and IMAGES, to stand under the options of every command that takes them.
ENCODER = f"ENCODER is {ENCODERS}."
ENCODER_AND_IMAGES = (
    f"{ENCODER} IMAGES is a folder, an image, a .parquet, .npy or .npz file, the name of a data set, or shards here or "
    "at an address, such as 'shards/{000..019}.tar'."
)

# The sets of values that methods may have, in a few words. Which values they are, each method says itself.
PRESETS = {
    "paper": "the values of the paper",
    "robust": "for small data, small batches and short runs",
    "small": "for fewer images than the paper's data sets have",
    "shapes": "for the built-in drawings; takes minutes",
    ADAPT: "to adapt an encoder that exists (--init)",
}


def method_names() -> list[str]:
    return _names_in("carl.methods", "METHODS")


def experiment_names() -> list[str]:
    return _names_in("carl.reproduction.recipes", "RECIPES")


def _names_in(module: str, registry: str) -> list[str]:
    """The names in a literal dict, read from the source: to import these modules would take seconds."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    for statement in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == registry:
            assert isinstance(statement.value, ast.Dict)
            return [ast.literal_eval(key) for key in statement.value.keys if key is not None]
    raise AssertionError(f"{spec.origin} assigns no {registry}")


def preset_words() -> str:
    """The presets, to stand under the options of a command."""
    presets = "\n".join(f"  {name:<8} {words}" for name, words in PRESETS.items())
    return f"\b\nPresets (not every method has each):\n{presets}"


def as_setting(option: str, command: click.Command, words: Sequence[str]) -> str | None:
    """What to write instead of an unknown option that is a value of the configuration; None if it is not one.

    `words` are those of the command line, in which the value stands.
    """
    if not any("--set" in parameter.opts for parameter in command.params):
        return None
    found = settings_called(option.lstrip("-").replace("-", "_"))
    if not found:
        return None
    value = _value_of(option, words)
    remedy = " or ".join(f"--set {name}={value}" for name in found)
    return f"there is no option {option}; write {remedy}"


def settings_called(key: str) -> list[str]:
    """Every `section.key` of the configuration with this key, the one that is most likely meant first."""
    from carl.config import Config

    sections = {name: field.annotation for name, field in Config.model_fields.items() if name != "method"}
    found = [f"{name}.{key}" for name, section in sections.items() if _has(section, key)]
    if any(not name.startswith(("probe.", "log.")) for name in found):
        return found
    from carl.methods import METHODS  # takes a while, which does not matter here

    of_method = any(key in method.Options.model_fields for method in METHODS.values())
    return [*([f"method.{key}"] if of_method else []), *found]


def _has(section: object, key: str) -> bool:
    return key in getattr(section, "model_fields", {})


def _value_of(option: str, words: Sequence[str]) -> str:
    """What stands after the option on the command line."""
    for place, word in enumerate(words):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option:
            following = words[place + 1 : place + 2]
            return following[0] if following and not following[0].startswith("--") else "VALUE"
    return "VALUE"
