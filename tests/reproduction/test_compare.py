"""The table of a comparison names every value that is not the paper's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carl.config import resolve
from carl.data.facts import DataFacts
from carl.methods import METHODS
from carl.reproduction.compare import changed_values, markdown

FACTS = DataFacts("shapes", 8_000, 3, 24, 10)


def outcome(name: str, preset: str = "shapes", facts: DataFacts = FACTS) -> dict[str, Any]:
    """What a run without further wishes leaves behind."""
    method = METHODS[name]
    layers = [method.preset(preset, facts), {"data": {"source": "shapes", "image_size": 24}, "method": {"name": name}}]
    config = method.completed(resolve(layers, method.Options)).model_dump(mode="json")
    return {"config": config, "data": "shapes", "images": 8_000, "classes": 10}


def row(name: str) -> dict[str, Any]:
    figures = dict.fromkeys(
        ("knn", "knn_random", "linear", "linear_random", "images_per_second", "peak_memory_mb"), 1.0
    )
    known = {"state": "done", "seeds": 1, "seeds_asked": 1, "epochs": 8, "batch_size": 128, "images": 8_000}
    known |= {"image_size": 24, "verdict": "healthy"}
    values = changed_values(name, outcome(name))
    return {"method": name, **known, **figures, "values": values, "machine": "a machine", "made": "2026-11-16"}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("carl", {"method.prototype_scale": 0.088, "views.crop_min": 0.6, "views.hue": 0.5, "views.grey": 0.5}),
        ("pcl", {"method.warmup_epochs": 4, "method.queue": 512, "views.pipeline": "simclr", "optim.lr": 0.06}),
        ("swav", {"method.queue": 0, "optim.name": "sgd", "views.pipeline": "simclr", "method.epsilon": 0.01}),
    ],
)
def test_values_that_the_paper_leaves_unset_and_views_are_listed(name: str, values: dict[str, Any]):
    found = changed_values(name, outcome(name))
    assert {key: found.get(key) for key in values} == values


@pytest.mark.parametrize("name", list(METHODS))
def test_the_papers_own_preset_changes_nothing(name: str):
    assert changed_values(name, outcome(name, "paper", replace(FACTS, images=10**8))) == {}


def test_what_was_cut_to_the_data_is_listed_too():
    assert changed_values("pcl", outcome("pcl"))["method.clusters"] == [50, 100, 200]
    assert changed_values("swav", outcome("swav", "paper", replace(FACTS, images=600)))["method.queue"] == 256


def test_a_collapse_is_in_the_table():
    collapsed = row("pcl") | {"verdict": "partly collapsed"}
    line = next(line for line in markdown("shapes", [row("carl"), collapsed]).splitlines() if line.startswith("| pcl"))
    assert "| partly collapsed |" in line


def test_every_method_was_at_least_ten_points_over_random_weights_when_last_compared():
    kept = Path(__file__).parents[2] / "results" / "compare-shapes.json"
    rows = json.loads(kept.read_text())["rows"]
    assert {each["method"] for each in rows} == set(METHODS)
    for each in rows:
        assert each["knn"] >= each["knn_random"] + 10, each["method"]
        assert each["images_per_second"] > 0
        assert each["peak_memory_mb"] > 0


def test_values_that_all_methods_share_stand_in_the_caption_once():
    table = markdown("shapes", [row("carl"), row("pcl"), row("supervised")])
    caption, _, body = table.partition("| method ")
    assert "the same for all: views.crop_min=0.6, views.hue=0.5, views.grey=0.5" in caption
    assert "crop_min" not in body
    assert "method.prototype_scale=0.088" in next(line for line in body.splitlines() if line.startswith("| carl"))
    assert "views.pipeline=simclr" in next(line for line in body.splitlines() if line.startswith("| pcl"))
    assert (
        "views.crop_min=0.6" in markdown("shapes", [row("carl")]).partition("| method ")[2]
    )  # alone, nothing is shared
