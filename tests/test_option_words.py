"""Words about options, read without the libraries that take seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from carl.data.facts import DataFacts
from carl.methods import METHODS
from carl.option_words import PRESETS, experiment_names, method_names, settings_called
from carl.reproduction.recipes import RECIPES
from tests.conftest import Run


def test_the_help_names_every_method_and_explains_every_preset(carl: Run):
    assert method_names() == [name for name in METHODS if not name.startswith("toy")]
    facts = DataFacts("photos", 1000, 3, 32, 0)
    presets = {preset for method in METHODS.values() for preset in method.presets(facts)}
    assert presets <= PRESETS.keys(), "say in option_words.PRESETS what it is for"
    shown = carl("pretrain", "--help").stdout
    assert all(name in shown for name in (*method_names(), *PRESETS))


def test_the_help_names_every_experiment(carl: Run):
    assert experiment_names() == list(RECIPES)
    assert f"EXPERIMENT is {', '.join(RECIPES)} or all." in " ".join(carl("reproduce", "--help").stdout.split())


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["--lr", "0.1"], "--set optim.lr=0.1"),
        (["--lr=0.1"], "--set optim.lr=0.1"),
        (["--weight-decay", "1e-4"], "--set optim.weight_decay=1e-4"),
        (["--temperature", "0.2"], "--set method.temperature=0.2 or --set probe.temperature=0.2"),
        (["--parts"], "--set method.parts=VALUE"),
    ],
)
def test_an_unknown_option_that_is_a_value_is_answered_with_its_setting(words: list[str], remedy: str, carl: Run):
    done = carl("pretrain", "shapes", *words)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"carl: there is no option {words[0].split('=')[0]}; write {remedy}"]


def test_other_unknown_options_are_refused_as_before(carl: Run):
    assert "No such option '--frobnicate'" in carl("pretrain", "shapes", "--frobnicate").stderr
    assert "No such option '--lr'" in carl("embed", "run", "photos", "--lr", "1").stderr  # which takes no --set
    assert settings_called("frobnicate") == []


def test_labels_can_be_left_out_on_the_command_line(carl: Run, tmp_path: Path):
    done = carl("pretrain", "shapes", "--labels", "some")
    assert done.returncode == 2
    assert "'some' is not one of" in done.stderr
