"""The table of a comparison names every value that is not the paper's."""

from __future__ import annotations

from typing import Any

import pytest

from carl.config import resolve
from carl.experiments.compare import changed_values, markdown
from carl.methods import METHODS, DataFacts

FACTS = DataFacts("shapes", 8_000, 3, 24, 10)


def outcome(name: str, preset: str = "shapes") -> dict[str, Any]:
    """What a run without further wishes leaves behind."""
    method = METHODS[name]
    layers = [method.preset(preset, FACTS), {"data": {"source": "shapes", "image_size": 24}, "method": {"name": name}}]
    config = method.completed(resolve(layers, method.Options)).model_dump(mode="json")
    return {"config": config, "data": "shapes", "images": 8_000, "classes": 10}


def row(name: str) -> dict[str, Any]:
    figures = dict.fromkeys(
        ("knn", "knn_random", "linear", "linear_random", "images_per_second", "peak_memory_mb"), 1.0
    )
    known = {"state": "done", "seeds": 1, "seeds_asked": 1, "epochs": 8, "batch_size": 128, "images": 8_000}
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
    assert changed_values(name, outcome(name, "paper")) == {}


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
