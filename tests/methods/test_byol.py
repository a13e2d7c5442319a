"""BYOL: the schedule of its target, and what its loss compares."""

from __future__ import annotations

import math

import pytest
import torch
from lightly.loss import NegativeCosineSimilarity

from carl.methods.byol import BYOL
from tests.methods.examples import PROGRESS, make, make_batch


def made() -> BYOL:
    method = make("byol", momentum=0.996)
    assert isinstance(method, BYOL)
    return method


def test_the_momentum_goes_from_its_base_to_1_by_a_cosine():
    method = made()
    assert method.momentum(0.0) == pytest.approx(0.996)
    assert method.momentum(0.5) == pytest.approx(0.998)
    assert method.momentum(1.0) == 1.0
    for step in range(101):  # BYOL, section 3.3: 1 - (1 - tau) (cos(pi k / K) + 1) / 2
        expected = 1 - (1 - 0.996) * (math.cos(math.pi * step / 100) + 1) / 2
        assert method.momentum(step / 100) == pytest.approx(expected, abs=1e-12)


def test_each_step_averages_by_the_momentum_of_that_step():
    method = made().double()
    source = {**method.encoder.state_dict(prefix="encoder."), **method.head.state_dict()}
    with torch.no_grad():
        for parameter in [*method.encoder.parameters(), *method.head.parameters()]:
            parameter.add_(1)
    old = {key: value.clone() for key, value in method.target.named_parameters()}
    method.after_step(0.25)
    momentum = method.momentum(0.25)
    for key, value in method.target.named_parameters():
        torch.testing.assert_close(value, momentum * old[key] + (1 - momentum) * source[key], atol=1e-9, rtol=0)


def test_each_views_prediction_is_compared_with_the_target_of_the_other_view():
    method, batch = made().eval(), make_batch("byol")
    loss, _ = method(batch, PROGRESS)
    with torch.no_grad():
        predictions = [method.head(method.encoder(view)) for view in batch.views]
        targets = [method.target(view) for view in batch.views]
    lightly = NegativeCosineSimilarity()
    expected = 4 + 2 * lightly(predictions[0], targets[1]) + 2 * lightly(predictions[1], targets[0])
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)


def test_the_distance_to_the_target_is_logged_and_grows_as_the_encoder_moves():
    method = made()
    assert method.logged(0.5) == {"momentum": pytest.approx(0.998), "target_distance": 0.0}
    with torch.no_grad():
        for parameter in method.encoder.parameters():
            parameter.add_(0.1)
    assert method.logged(0.5)["target_distance"] > 0
