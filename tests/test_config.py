"""Configuration: layers, rules, and errors that fit on a line."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carl.config import Config, MethodOptions, differences, parse_assignments, read_toml, resolve, to_toml
from carl.errors import UserError
from carl.methods.carl import CarlOptions

DATA = {"data": {"source": "shapes"}}


def test_later_layers_win_key_by_key():
    config = resolve([DATA, {"train": {"epochs": 3, "seed": 1}}, {"train": {"epochs": 5}}], MethodOptions)
    assert (config.train.epochs, config.train.seed) == (5, 1)


def test_toml_round_trips():
    config = resolve([DATA, {"train": {"keep_epochs": [1, 2]}, "method": {"prototypes": 30}}], CarlOptions)
    assert resolve([tomllib.loads(to_toml(config))], CarlOptions) == config


def test_options_of_view_operations_round_trip_and_differ_like_all_others():
    given = {"views": {"blur_sigma": [0.5, 2], "grey": 0.1, "hue": None}}
    config = resolve([DATA, {"views": {"hue": 0.3}}, given], CarlOptions)
    assert config.views.of_operations == {"blur_sigma": (0.5, 2), "grey": 0.1}
    assert resolve([tomllib.loads(to_toml(config))], CarlOptions) == config
    assert resolve([config.model_dump()], CarlOptions) == config
    other = resolve([DATA, {"views": {"blur_sigma": (0.5, 2.0), "grey": 0.2}}], CarlOptions)
    assert differences(config, other) == ["views.grey: 0.1 -> 0.2"]
    assert differences(resolve([DATA], CarlOptions), other) == [
        "views.blur_sigma: None -> [0.5, 2.0]",
        "views.grey: None -> 0.2",
    ]


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"train": {"epoch": 3}}, ["train.epoch", "did you mean 'epochs'"]),
        ({"trian": {"epochs": 3}}, ["trian", "did you mean 'train'"]),
        ({"train": {"epochs": 0}}, ["train.epochs=0", "greater than or equal to 1"]),
        ({"train": {"epochs": "many"}}, ["train.epochs='many'", "integer"]),
        ({"train": {"batch_size": 10, "accumulate": 3}}, ["accumulate=3", "batch_size=10", "divisor"]),
        ({"train": {"epochs": 5, "keep_epochs": [9]}}, ["keep_epochs=9", "1 to 5"]),
        ({"optim": {"lr": float("nan")}}, ["optim.lr", "finite"]),
        ({"optim": {"name": "adam"}}, ["optim.name='adam'", "adamw"]),
        ({"method": {"prototypes": 1}}, ["method.prototypes=1", "greater than or equal to 2"]),
        ({"method": {"prototype": 10}}, ["method.prototype", "did you mean 'prototypes'"]),
        ({"views": {"crop_min": 2}}, ["views.crop_min=2", "less than or equal to 1"]),
        ({"train": 3}, ["'train'", "train.KEY"]),
    ],
)
def test_a_bad_value_is_named_with_its_rule_on_one_line(layer: dict[str, object], words: list[str]):
    with pytest.raises(UserError) as caught:
        resolve([DATA, layer], CarlOptions)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_assignments_are_read_as_toml_and_else_as_text():
    layer = parse_assignments(
        ["train.epochs=3", "train.keep_epochs=[1, 2]", "data.source=my photos", "log.report=false"]
    )
    assert layer == {
        "train": {"epochs": 3, "keep_epochs": [1, 2]},
        "data": {"source": "my photos"},
        "log": {"report": False},
    }


@pytest.mark.parametrize("assignment", ["epochs=3", "train.epochs", "=3", "train.=2"])
def test_an_assignment_without_section_key_and_value_is_refused(assignment: str):
    with pytest.raises(UserError, match=r"section\.key=value"):
        parse_assignments([assignment])


@given(st.text(max_size=30))
def test_no_assignment_makes_anything_but_a_layer_or_a_user_error(text: str):
    try:
        layer = parse_assignments([text])
    except UserError:
        return
    assert all(isinstance(values, dict) for values in layer.values())


def test_differences_name_what_changed():
    old = resolve([DATA], CarlOptions)
    new = resolve([DATA, {"optim": {"lr": 0.1}, "method": {"prototypes": 7}}], CarlOptions)
    assert differences(old, new) == ["method.prototypes: 100 -> 7", "optim.lr: 0.6 -> 0.1"]
    assert differences(old, old) == []


def test_a_toml_file_that_is_none_is_a_user_error(tmp_path: Path):
    (tmp_path / "bad.toml").write_text("train = [")
    with pytest.raises(UserError, match="not valid TOML"):
        read_toml(tmp_path / "bad.toml")
    with pytest.raises(UserError, match="cannot read"):
        read_toml(tmp_path / "none.toml")


def test_configuration_is_frozen():
    config: Config = resolve([DATA], CarlOptions)
    with pytest.raises(ValueError, match="frozen"):
        config.train.epochs = 3
