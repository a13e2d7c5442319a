"""Presets of the methods beside CARL: this paper's values, or the method's own where it names none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from carl.config import Config, resolve
from carl.data.facts import DataFacts
from carl.methods import METHODS
from carl.methods.moco import MoCo, fitting_queue
from carl.methods.paper import fitting_clusters
from carl.methods.pcl import PCL
from carl.training.plan import PretrainRequest, plan
from carl.views.recipes import pipeline


def facts(name: str = "cifar10", images: int = 50_000, classes: int = 10) -> DataFacts:
    return DataFacts(name=name, images=images, channels=3, image_size=32, classes=classes)


def planned(name: str, data: DataFacts, preset: str | None = None, **method: Any) -> Config:
    """The configuration that a run without further wishes has."""
    chosen = METHODS[name]
    layers = [
        chosen.preset(preset or chosen.default_preset(data), data),
        {"data": {"source": data.name, "image_size": 32}, "method": {"name": name, **method}},
    ]
    return chosen.completed(resolve(layers, chosen.Options))


@pytest.mark.parametrize(
    ("name", "views", "optimiser", "rate", "end", "decay", "exclude"),
    [
        ("simclr", "simclr", "sgd", 0.03, 0.0, 1e-6, "1d"),
        ("byol", "byol", "sgd", 0.03, 0.0, 1.5e-6, "1d"),
        ("moco", "moco", "sgd", 0.03, 0.0, 1e-4, "none"),
        ("pcl", "moco", "sgd", 0.03, 0.0, 1e-4, "none"),
        ("swav", "swav", "lars", 0.6, 0.0006, 1e-6, "none"),
        ("supervised", "supervised", "sgd", 0.03, 0.0, 5e-4, "1d"),
        ("simsiam", "moco", "sgd", 0.05, 0.0, 1e-4, "1d"),
    ],
)
def test_the_paper_preset_has_the_papers_optimiser_and_views(
    name: str, views: str, optimiser: str, rate: float, end: float, decay: float, exclude: str
):
    config = planned(name, facts())
    optim = config.optim
    assert (config.method.preset or "paper", config.views.pipeline) == ("paper", views)
    assert (optim.name, optim.lr, optim.lr_end, optim.weight_decay) == (optimiser, rate, end, decay)
    assert (optim.schedule, optim.warmup_epochs, optim.exclude) == ("cosine", 0.0, exclude)
    assert (config.train.epochs, config.train.batch_size) == (200, 256)
    assert (config.model.hidden_dim, config.model.hidden_layers, config.model.output_dim) == (512, 1, 128)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("simclr", {"temperature": 0.2}),
        ("byol", {"momentum": 0.996}),
        ("moco", {"temperature": 0.2, "momentum": 0.999, "queue": 65_536}),
        ("pcl", {"temperature": 0.2, "momentum": 0.999, "queue": 16_384, "warmup_epochs": 20, "smoothing": 10.0}),
        ("swav", {"temperature": 0.1, "epsilon": 0.05, "iterations": 3, "queue": 3840, "queue_epoch": 15}),
    ],
)
def test_the_paper_preset_has_the_methods_constants(name: str, values: dict[str, float]):
    method = planned(name, facts()).method.model_dump()
    assert {key: method[key] for key in values} == values


@pytest.mark.parametrize(("data", "prototypes"), [("cifar10", 100), ("cifar100", 300), ("stl10", 300)])
def test_swav_has_as_many_prototypes_as_carl(data: str, prototypes: int):
    for name in ("carl", "swav"):
        assert planned(name, facts(data, 100_000)).method.model_dump()["prototypes"] == prototypes


# MoCo's queue


@pytest.mark.parametrize(
    ("data", "preset", "queue"),
    [
        (facts("cifar10"), "paper", 65_536),
        (facts("stl10", 100_000), "paper", 65_536),
        (facts("imagenet64", 1_281_167, 1000), "paper", 65_536),
        (facts("photos", 200_000, 0), "paper", 65_536),
        (facts("cifar10", 10_000), "small", 4864),
        (facts("photos", 5_000, 0), "small", 2304),
        (facts("photos", 300, 0), "small", 150),
    ],
)
def test_mocos_queue_is_the_papers_where_the_data_allow_it(data: DataFacts, preset: str, queue: int):
    assert MoCo.default_preset(data) == preset
    config = planned("moco", data)
    assert config.method.model_dump()["queue"] == queue
    remarks = MoCo.remarks(config, data)
    assert bool(remarks) == (queue < 65_536)
    assert all(str(queue) in remark and "65536" in remark and str(data.images) in remark for remark in remarks)
    assert planned("moco", data, "paper").method.model_dump()["queue"] == 65_536


def test_a_queue_for_minutes_on_the_built_in_data_is_named_too():
    data = facts("shapes", 8_000)
    assert MoCo.default_preset(data) == "shapes"
    assert "not MoCo's 65536" in MoCo.remarks(planned("moco", data), data)[0]


@pytest.mark.parametrize("images", [2, 3, 96, 511, 512, 5000, 131_072, 10_000_000])
def test_a_fitting_queue_holds_no_image_twice(images: int):
    queue = fitting_queue(images)
    assert 1 <= queue <= max(1, images // 2)
    assert queue <= 65_536
    assert queue % 256 == 0 or images < 512


# PCL's clusters


@pytest.mark.parametrize(
    ("data", "clusters"),
    [
        (facts("cifar10"), (250, 500, 1000)),
        (facts("stl10", 100_000), (250, 500, 1000)),
        (facts("cifar100", classes=100), (2500, 5000, 10_000)),
        (facts("imagenet64", 1_281_167, 1000), (25_000, 50_000, 100_000)),
        (facts("cifar10", 5_000), (25, 50, 100)),
        (facts("photos", 5_000, 0), (25, 50, 100)),
        (facts("photos", 3, 0), (2, 2, 2)),
    ],
)
def test_pcl_has_the_papers_clusters_and_says_when_small_data_get_fewer(data: DataFacts, clusters: tuple[int, ...]):
    assert fitting_clusters(data) == clusters
    config = planned("pcl", data)
    assert config.method.model_dump()["clusters"] == clusters
    remarks = PCL.remarks(config, data)
    assert all(str(data.images) in remark for remark in remarks)
    assert any(str(clusters) in remark for remark in remarks) == (clusters[0] < 250)


def test_no_cluster_need_be_a_single_image_where_small_data_have_many_classes():
    assert fitting_clusters(facts("birds", 600, 200)) == (60, 120, 240)
    assert fitting_clusters(facts("birds", 600, 2000)) == (300, 300, 300)
    assert planned("pcl", facts("shapes", 150), "shapes").method.model_dump()["clusters"] == (50, 75, 75)


@pytest.mark.parametrize(("name", "queue", "usual"), [("pcl", 2304, "16384"), ("swav", 2304, "3840")])
def test_a_queue_cut_for_small_data_is_named(name: str, queue: int, usual: str):
    small, large = facts("photos", 5_000, 0), facts("photos", 100_000, 0)
    assert planned(name, small).method.model_dump()["queue"] == queue
    (remark,) = [r for r in METHODS[name].remarks(planned(name, small), small) if "queue" in r]
    assert str(queue) in remark
    assert usual in remark
    assert "5000 images" in remark
    assert not [r for r in METHODS[name].remarks(planned(name, large), large) if "queue" in r]


def test_supervised_views_crop_as_mocos_and_the_built_in_data_keep_their_own_crops():
    (view,), (mocos, _) = pipeline("supervised", 32), pipeline("moco", 32)
    assert view == replace(mocos, blur=0.2)
    assert view.crop_area == (0.2, 1.0)
    assert planned("supervised", facts("shapes", 8_000)).views.crop_min == 0.6


@pytest.mark.parametrize(("epochs", "warmup"), [(200, 20), (1000, 20), (30, 3), (5, 1)])
def test_pcl_warms_up_for_a_tenth_of_a_run_and_at_most_twenty_epochs(epochs: int, warmup: int):
    layers = [{"data": {"source": "x", "image_size": 32}, "train": {"epochs": epochs}}]
    assert PCL.completed(resolve(layers, PCL.Options)).method.model_dump()["warmup_epochs"] == warmup


@pytest.mark.parametrize(
    ("name", "has_norm"),
    [("carl", True), ("swav", True), ("byol", True), ("simclr", False), ("moco", False), ("pcl", False)],
)
def test_batch_norm_stands_in_the_heads_of_carl_swav_and_byol_alone_as_carls_paper_says(name: str, has_norm: bool):
    method = METHODS[name](planned(name, facts(), "paper"), facts())
    assert any(isinstance(module, nn.BatchNorm1d) for module in method.head.modules()) == has_norm


# The preset `robust`


@pytest.mark.parametrize("name", list(METHODS))
@pytest.mark.parametrize("data", [facts("photos", 3000, 7), facts("shapes", 8_000), facts()])
def test_robust_gives_every_method_the_same_views_head_stem_budget_and_rate(name: str, data: DataFacts):
    ours, others = planned(name, data, "robust"), planned("simclr", data, "robust")
    alike = ours.model.head != "none"  # SCAN's groups stand straight on the features
    model = ours.model if alike else ours.model.model_copy(update={"head": others.model.head})
    assert (ours.views, model, ours.train, ours.data.image_size) == (
        others.views, others.model, others.train, others.data.image_size
    )  # fmt: skip
    assert ours.optim.model_copy(update={"weight_decay": 0.0}) == others.optim.model_copy(update={"weight_decay": 0.0})


@pytest.mark.parametrize("name", list(METHODS))
def test_the_head_of_every_method_has_batch_norm_in_robust_and_none_where_it_is_turned_off(name: str):
    config = planned(name, facts(), "robust")
    norms = [m for m in METHODS[name](config, facts()).head.modules() if isinstance(m, nn.BatchNorm1d)]
    has_projection = not METHODS[name].needs_labels and config.model.head != "none"  # a classifier has none
    assert bool(norms) == has_projection
    without = config.model_copy(update={"model": config.model.model_copy(update={"head_batch_norm": False})})
    fewer = [m for m in METHODS[name](without, facts()).head.modules() if isinstance(m, nn.BatchNorm1d)]
    assert len(fewer) < len(norms) or not has_projection


def test_robust_carl_has_the_values_it_had_before_it_was_shared():
    config = planned("carl", facts("photos", 3000, 7), "robust")
    assert (config.optim.name, config.optim.lr, config.optim.lr_end, config.optim.scale_lr) == ("sgd", 0.06, 6e-4, True)
    assert (config.optim.weight_decay, config.views.pipeline, config.views.crop_min) == (1e-6, "simclr", 0.2)
    assert (config.train.epochs, config.train.batch_size) == (200, 256)


@pytest.mark.parametrize(
    ("given", "rate"),
    [
        ({}, 0.03),
        ({"name": "sgd"}, 0.03),  # the preset's own
        ({"name": "adamw"}, 1e-3),
        ({"name": "lars"}, 0.6),
        ({"name": "adamw", "lr": 0.01}, 0.01),
    ],
)
def test_another_optimiser_has_a_rate_that_fits_it(given: dict[str, Any], rate: float, small_data: Path):
    layer = {"data": {"source": str(small_data)}, "method": {"name": "simclr"}, "train": {"batch_size": 16}}
    assert plan(PretrainRequest({**layer, "optim": given})).config.optim.lr == rate


def test_the_smallest_crop_is_of_large_views_and_leaves_small_ones_alone(small_data: Path):
    layer = {"data": {"source": str(small_data)}, "method": {"name": "swav"}, "train": {"batch_size": 16}}
    views = {"pipeline": "swav_multicrop", "crop_min": 0.6}
    planned = plan(PretrainRequest({**layer, "views": views}))
    assert [recipe.crop_area for recipe in planned.views.recipes] == [(0.6, 1.0)] * 2 + [(0.05, 0.14)] * 6
