"""SwAV: unit prototypes that wait an epoch, a queue that comes in late, small views."""

from __future__ import annotations

import pytest
import torch
from lightly.loss import SwaVLoss
from torch import Tensor

from carl.config import resolve
from carl.data.facts import DataFacts
from carl.methods.losses import sinkhorn
from carl.methods.swav import SwAV, SwavOptions
from carl.models.momentum import Queue
from carl.optim import build_optimizer
from tests.methods.examples import FACTS, PROGRESS, make, make_batch, settings

BEFORE, LATER = 0.5 / 8, 1.5 / 8  # in the first and in the second of eight epochs


def made(**options: object) -> SwAV:
    method = make("swav", **options)
    assert isinstance(method, SwAV)
    return method


def weight(method: SwAV) -> Tensor:
    return method.head.get_parameter("prototypes.linear.weight").detach().clone()


def step(method: SwAV, progress: float, decay: float = 0.1) -> None:
    optim = settings("swav").optim.model_copy(update={"weight_decay": decay})
    optimizer = build_optimizer(method, optim)
    method(make_batch("swav"), progress)[0].backward()
    method.after_backward(progress)
    optimizer.step()
    method.after_step(progress)
    method.zero_grad()


def test_prototypes_are_unit_vectors_from_the_start_and_after_each_step():
    method = made()
    for progress in (BEFORE, LATER, PROGRESS):
        torch.testing.assert_close(weight(method).norm(dim=1), torch.ones(10))
        step(method, progress)
    torch.testing.assert_close(weight(method).norm(dim=1), torch.ones(10))


def test_prototypes_do_not_move_in_the_first_epoch_and_then_do():
    method = made()
    start = weight(method)
    step(method, BEFORE)
    torch.testing.assert_close(weight(method), start, atol=1e-6, rtol=0)  # not even by the decay
    step(method, LATER)
    assert not torch.allclose(weight(method), start, atol=1e-4)


@pytest.mark.parametrize("epochs", [49, 98, 103, 107])  # for these 1 / epochs * epochs is below 1
def test_rounding_does_not_keep_prototypes_or_queue_waiting_a_step_longer(epochs: int):
    config = settings("swav", frozen_epochs=1.0, queue_epoch=1)
    longer = config.model_copy(update={"train": config.train.model_copy(update={"epochs": epochs})})
    torch.manual_seed(0)
    method, batch = SwAV(longer, FACTS), make_batch("swav")
    fill(method, 20)
    with torch.no_grad():
        without, found = (method.eval()(batch, progress)[0] for progress in (0.5 / epochs, 1 / epochs))
    assert abs(float(found - without)) > 1e-4  # the queue is in it
    start = weight(method)
    step(method.train(), 1 / epochs)
    assert not torch.allclose(weight(method), start, atol=1e-4)


def queue_of(method: SwAV, large: int) -> Queue:
    queue = method.queues[large]
    assert isinstance(queue, Queue)
    return queue


def fill(method: SwAV, count: int) -> None:
    for large in range(2):
        generator = torch.Generator().manual_seed(large)
        queue_of(method, large).push(torch.nn.functional.normalize(torch.randn(count, 32, generator=generator), dim=1))


def test_a_queue_that_is_not_yet_full_counts_for_nothing():
    method, batch = made(queue_epoch=1).eval(), make_batch("swav")
    with torch.no_grad():
        without = method(batch, BEFORE)[0]
        fill(method, 19)
        torch.testing.assert_close(method(batch, LATER)[0], without, atol=1e-6, rtol=0)
        fill(method, 1)
        assert abs(float(method(batch, LATER)[0] - without)) > 1e-4


def lightlys(method: SwAV, pipeline: str, with_queue: bool) -> float:
    batch = make_batch("swav", views=pipeline)
    with torch.no_grad():
        embeddings = [torch.nn.functional.normalize(method.embed(view), dim=1) for view in batch.views]
        prototypes = weight(method).T
        scores = [view @ prototypes for view in embeddings]
        queues = [queue_of(method, large).rows @ prototypes for large in range(2)] if with_queue else None
        return float(SwaVLoss()(scores[:2], scores[2:], queues))


@pytest.mark.parametrize("pipeline", ["swav", "swav_multicrop"])
def test_the_loss_is_lightlys_and_has_the_queue_in_it_only_from_its_epoch(pipeline: str):
    method = made(queue_epoch=1).eval()
    batch = make_batch("swav", views=pipeline)
    fill(method, 20)
    with torch.no_grad():
        before, later = method(batch, BEFORE)[0], method(batch, LATER)[0]
    assert float(before) == pytest.approx(lightlys(method, pipeline, with_queue=False), abs=1e-5)
    assert float(later) == pytest.approx(lightlys(method, pipeline, with_queue=True), abs=1e-5)
    assert abs(float(before - later)) > 1e-4


def test_the_head_normalises_over_views_of_all_sizes_at_once():
    method, batch, seen = made().train(), make_batch("swav", views="swav_multicrop"), []
    method.head.get_submodule("projection").register_forward_hook(lambda _, given, __: seen.append(len(given[0])))
    method.represent(batch)
    assert seen == [sum(len(view) for view in batch.views)]


def test_a_queue_that_would_come_after_the_run_is_remarked():
    data = DataFacts("cifar10", 50_000, 3, 32, 10)
    layers = [SwAV.preset("paper", data), {"data": {"source": "x"}, "method": {"name": "swav"}}]
    for epochs, count in ((15, 1), (16, 0)):
        config = resolve([*layers, {"train": {"epochs": epochs}}], SwavOptions)
        assert len([remark for remark in SwAV.remarks(config, data) if "method.queue_epoch" in remark]) == count


def test_each_large_view_has_a_queue_of_its_own_embeddings():
    method, batch = made(), make_batch("swav")
    represented = method.represent(batch).detach()
    method.objective(represented, batch, BEFORE)  # they are collected before they are used
    method.after_step(BEFORE)
    for large in range(2):
        torch.testing.assert_close(queue_of(method, large).rows[:8], represented[large])
    assert method.logged(BEFORE) == {"queue_filled": pytest.approx(0.4)}


def test_without_a_queue_there_is_none_to_keep_or_log():
    method = made(queue=0)
    assert not any("queue" in key for key in method.state_dict())
    assert method.logged(PROGRESS) == {}
    assert method(make_batch("swav"), PROGRESS)[0].isfinite()


def test_codes_carry_no_gradient():
    method, batch = made().eval().double(), make_batch("swav")
    represented = method.represent(type(batch)([view.double() for view in batch.views], batch.indices)).detach()
    represented.requires_grad_()
    loss, _ = method.objective(represented, batch, BEFORE)
    (gradient,) = torch.autograd.grad(loss, represented)
    scores = represented.detach().requires_grad_()
    prototypes = weight(method)
    options = method.options
    codes = [sinkhorn(represented[v].detach() @ prototypes.T, options.epsilon, options.iterations) for v in (0, 1)]
    log_p = (scores @ prototypes.T / 0.1).log_softmax(2)
    fixed = -((codes[0] * log_p[1]).sum(1).mean() + (codes[1] * log_p[0]).sum(1).mean()) / 2
    (expected,) = torch.autograd.grad(fixed, scores)
    torch.testing.assert_close(gradient, expected, atol=1e-9, rtol=0)
