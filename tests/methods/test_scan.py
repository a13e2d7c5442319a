"""SCAN's second step: its loss against the formula, neighbours as pairs, and the start of its groups."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor

from carl.config import merge
from carl.errors import UserError
from carl.methods.losses import log_assignments, unit
from carl.methods.neighbour_losses import scan_loss
from carl.methods.scan import SCAN
from carl.training.plan import PretrainRequest, plan
from tests.conftest import Run
from tests.methods.examples import FACTS, IMAGES, PROGRESS, TINY, embedder, make, make_batch, settings
from tests.reliability.world import make_tars


def made(epoch: int = 0, **options: Any) -> SCAN:
    method = make("scan", epoch, **options)
    assert isinstance(method, SCAN)
    return method


def transcribed(first: Tensor, second: Tensor, weight: float) -> float:
    """SCAN's Eq. 2, word for word, for probabilities (B, K) of images and neighbours."""
    images, groups = first.shape
    agreement = sum(math.log(sum(float(first[i, c] * second[i, c]) for c in range(groups))) for i in range(images))
    means = [sum(float(first[i, c]) for i in range(images)) / images for c in range(groups)]
    return -agreement / images + weight * sum(mean * math.log(mean) for mean in means)


def test_the_loss_is_scans_second_equation():
    method, batch = made(entropy=3.0).eval(), make_batch("scan")
    with torch.no_grad():
        first, second = (method.log_assignments(view).exp() for view in batch.views)
        loss = method(batch, PROGRESS)[0]
    assert loss.item() == pytest.approx(transcribed(first, second, 3.0), abs=1e-5)


def test_gradients_go_through_the_image_and_through_its_neighbour():
    method, batch = made(), make_batch("scan")
    represented = method.represent(batch).detach().requires_grad_()
    method.objective(represented, batch, PROGRESS)[0].backward()
    assert represented.grad is not None
    assert (represented.grad.flatten(1).norm(dim=1) > 1e-4).all()


def test_neighbours_are_the_images_most_alike_to_the_encoder_of_the_start():
    method = made(neighbours=4)
    points = embedder(method)(lambda images: method.head.get_submodule("centred")(method.embed(images)))[1]
    similarity = (points @ points.T).fill_diagonal_(math.inf)
    expected = similarity.topk(5, dim=1).indices
    assert torch.equal(method.neighbours[:, 0], torch.arange(IMAGES, dtype=torch.int32))
    assert torch.equal(method.neighbours[:, 1:].sort(1).values, expected[:, 1:].int().sort(1).values)


def test_neighbours_stay_those_of_the_start():
    method, before = made(), made().neighbours.clone()
    with torch.no_grad():
        for parameter in method.encoder.parameters():
            parameter.mul_(-1)
    method.before_epoch(1, embedder(method))
    assert torch.equal(method.neighbours, before)


@pytest.mark.parametrize(("wanted", "found"), [(None, 3), (5, 5), (1000, IMAGES - 1), (0, 0)])
def test_neighbours_are_as_many_as_asked_for_or_half_a_group(wanted: int | None, found: int):
    assert made(epoch=1, neighbours=wanted).neighbours.shape == (IMAGES, 1 + found)


def test_pairs_are_drawn_from_an_image_and_its_neighbours_by_seed_and_epoch():
    method = made(neighbours=3)
    drawn = [method.partners(epoch) for epoch in range(40)]
    own = method.neighbours.numpy()
    assert all((own == found[:, None]).any(1).all() for found in drawn if found is not None)
    seen = np.stack([found for found in drawn if found is not None])
    assert all(set(seen[:, image]) == set(own[image]) for image in range(IMAGES))
    again = method.partners(7)
    assert again is not None
    assert np.array_equal(seen[7], again)
    assert made(neighbours=0).partners(0) is None


def test_groups_start_where_neighbours_agree_and_nothing_else_is_trained():
    method, untouched = made(), made(epoch=1)
    for (key, value), before in zip(method.named_parameters(), untouched.parameters(), strict=True):
        assert torch.equal(value, before) == (key != "head.prototypes.linear.weight"), key
    points = embedder(method)(lambda images: method.head.get_submodule("centred")(method.embed(images)))[1]
    near = points[method.neighbours[:, 1].long()]

    def loss(prototypes: Tensor) -> float:
        return float(scan_loss(*(log_assignments(rows @ unit(prototypes).T / 0.1) for rows in (points, near)), 5.0))

    start, untrained = loss(method.prototype_vectors()), loss(made(head_steps=0).prototype_vectors())
    assert start < untrained < loss(untouched.prototype_vectors())


def test_more_groups_than_images_are_refused():
    with pytest.raises(UserError, match=r"method.groups=65 is over the 64 images; ask for fewer"):
        SCAN(settings("scan", groups=65), FACTS)


def test_shards_are_refused_before_anything_is_trained(tmp_path: Path):
    make_tars(tmp_path)
    layer = merge([TINY, {"data": {"source": str(tmp_path / "good.tar")}, "method": {"name": "scan"}}])
    with pytest.raises(UserError, match="--method scan shows images beside their neighbours, and shards are read in"):
        plan(PretrainRequest(layer, tmp_path / "run"))


def test_a_run_starts_from_an_encoder_and_says_what_random_weights_would_miss(
    carl: Run, small_data: Path, tmp_path: Path
):
    torch.manual_seed(0)
    torch.save(timm.create_model("test_resnet").state_dict(), tmp_path / "small.pth")
    words = ["pretrain", small_data, "--method", "scan", "--image-size", "24", "--epochs", "1", "--batch-size", "32"]
    words += ["--set", "log.report=false", "--set", "probe.every=0"]
    done = carl(*words, "--init", f"timm:test_resnet@{tmp_path / 'small.pth'}", "--out", "adapted")
    assert done.returncode == 0, done.stderr
    assert "scan (adapt preset)" in done.stdout
    assert "random weights" not in done.stdout
    record = json.loads((tmp_path / "adapted" / "environment.json").read_text())
    assert "small.pth" in record["started_from"]["origin"]
    done = carl(*words, "--backbone", "test_resnet", "--out", "scratch")
    assert done.returncode == 0, done.stderr
    assert "random weights see little" in done.stdout
