"""What every method must keep to, whatever it does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from carl.methods import METHODS, Method
from carl.methods.base import spread
from carl.optim import build_optimizer
from carl.training.accumulation import backward_in_parts
from carl.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from tests.methods.examples import FACTS, PROGRESS, make, make_batch, settings

ALL = pytest.mark.parametrize("name", list(METHODS))


def slow_copies(method: Method) -> set[str]:
    """Parameters that no gradient may reach: all that are neither in the encoder nor in the head."""
    return {key for key, _ in method.named_parameters() if not key.startswith(("encoder.", "head."))}


@cache
def idle(name: str) -> frozenset[str]:
    """Biases that a norm after them takes away again, found by moving them: the loss stays what it was."""
    method, batch = make(name).double(), make_batch(name)
    batch = type(batch)([view.double() for view in batch.views], batch.indices, batch.labels)
    state = copied(method.state_dict())

    def loss() -> float:
        method.load_state_dict(state)  # queues and batch statistics move with each call
        torch.manual_seed(0)
        return float(method(batch, PROGRESS)[0].detach())

    found, expected = set(), loss()
    for key in [key for key, _ in method.named_parameters() if key.startswith("head.") and key.endswith("bias")]:
        before = state[key]
        state[key] = before + torch.linspace(0.1, 0.9, len(before), dtype=before.dtype)
        found |= {key} if loss() == pytest.approx(expected, rel=1e-9) else set()
        state[key] = before
    return frozenset(found)


def copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in state.items()}


def changed(method: Method, before: dict[str, Tensor]) -> set[str]:
    """Keys of the method's state that are no longer what they were."""
    return {key for key, value in method.state_dict().items() if not torch.equal(value, before[key])}


@ALL
def test_loss_and_figures_are_finite_scalars(name: str):
    loss, metrics = make(name)(make_batch(name), PROGRESS)
    assert loss.ndim == 0
    assert "loss" in metrics
    assert all(value.ndim == 0 and value.isfinite() for value in metrics.values())


@ALL
def test_fifteen_whole_steps_lower_the_loss_on_images_of_shapes(name: str):
    method, batch = make(name), make_batch(name, 16)
    optimizer = build_optimizer(method, settings(name).optim)
    for first in (16, 32, 48):  # fill the queues: against their random start the loss would rise at first
        method(make_batch(name, 16, first), PROGRESS)
        method.after_step(PROGRESS)
    losses = []
    for _ in range(15):
        loss, _ = method(batch, PROGRESS)
        optimizer.zero_grad()
        loss.backward()
        method.after_backward(PROGRESS)
        optimizer.step()
        method.after_step(PROGRESS)
        losses.append(loss.item())
    assert all(map(math.isfinite, losses))
    assert sum(losses[-3:]) / 3 < losses[0] - 0.1, losses


# Gradients reach exactly what is meant to learn


@ALL
def test_gradients_reach_every_trained_parameter_and_no_other(name: str):
    method = make(name)
    method(make_batch(name), PROGRESS)[0].backward()
    slow = slow_copies(method)
    for key, parameter in method.named_parameters():
        assert parameter.requires_grad == (key not in slow), key
        largest = 0.0 if parameter.grad is None else float(parameter.grad.abs().max())
        assert (largest > 1e-7) == (key not in slow and key not in idle(name)), key
    assert not any(buffer.requires_grad for buffer in method.buffers())


@ALL
def test_the_optimiser_has_encoder_and_head_and_nothing_else(name: str):
    method = make(name)
    held = {id(p) for group in build_optimizer(method, settings(name).optim).param_groups for p in group["params"]}
    assert held == {id(p) for p in [*method.encoder.parameters(), *method.head.parameters()]}


@ALL
def test_only_after_step_moves_slow_copies_and_queues(name: str):
    method, batch = make(name), make_batch(name)
    optimizer = build_optimizer(method, settings(name).optim)
    followers = slow_copies(method) | {key for key in method.state_dict() if "queue" in key or "memory" in key}
    before = copied(method.state_dict())
    method(batch, PROGRESS)[0].backward()
    method.after_backward(PROGRESS)
    optimizer.step()
    moved = changed(method, before)
    assert not moved & followers
    assert moved >= {key for key, p in method.named_parameters() if p.requires_grad and key not in idle(name)}
    before = copied(method.state_dict())
    method.after_step(PROGRESS)
    moved = changed(method, before)
    assert moved <= followers | {"head.prototypes.linear.weight"}  # which SwAV makes unit vectors again
    still = {key.removeprefix("head.") for key in idle(name)}  # their copies follow what does not move
    assert moved >= {key for key in followers if not key.endswith(tuple(still) or ("nothing",))}


@ALL
def test_what_is_done_before_an_epoch_leaves_all_parameters_and_batch_statistics_alone(name: str):
    torch.manual_seed(0)
    before = copied(METHODS[name](settings(name), FACTS).state_dict())
    method = make(name)  # the same seed, and before_epoch
    assert all("clusterings" in key for key in changed(method, before))
    assert method.state_dict().keys() == before.keys()  # they do not depend on how far a run has come


# State


@ALL
def test_state_round_trips_through_a_checkpoint_file(name: str, tmp_path: Path):
    method, other = make(name), METHODS[name](settings(name), FACTS)
    optimizer = build_optimizer(method, settings(name).optim)
    method(make_batch(name), PROGRESS)[0].backward()
    optimizer.step()
    method.after_step(PROGRESS)
    state = Checkpoint(1, method.state_dict(), optimizer.state_dict(), {}, torch.get_rng_state(), None, "data", 0.0)
    save_checkpoint(tmp_path / "checkpoint.pt", state)
    found = load_checkpoint(tmp_path / "checkpoint.pt")
    other.load_state_dict(found.method)  # strict
    assert not changed(other, method.state_dict())
    build_optimizer(other, settings(name).optim).load_state_dict(found.optimizer)
    batch = make_batch(name)
    losses = []
    for each in (method, other):
        torch.manual_seed(1)
        losses.append(each(batch, PROGRESS)[0])
    assert torch.equal(losses[0], losses[1])


@ALL
def test_unknown_presets_are_refused_with_the_known_ones(name: str):
    with pytest.raises(ValueError, match="paper"):
        METHODS[name].preset("papre", FACTS)


# A batch in parts


def gradients(method: Method) -> dict[str, Tensor]:
    return {key: p.grad.clone() for key, p in method.named_parameters() if p.grad is not None}


@ALL
def test_a_batch_in_parts_has_the_loss_and_the_gradients_of_the_whole(name: str):
    # In eval mode batch norm is the same for each part; float64 leaves only errors to differ.
    method = make(name).double().eval()
    batch = make_batch(name, 16)
    batch = type(batch)([view.double() for view in batch.views], batch.indices, batch.labels)
    loss, _ = method(batch, PROGRESS)
    loss.backward()
    whole = gradients(method)
    method.zero_grad()
    metrics = backward_in_parts(method, batch, PROGRESS, 2, torch.autocast("cpu", enabled=False), 1.0)
    assert metrics["loss"].item() == pytest.approx(loss.item(), rel=1e-9)
    parts = gradients(method)
    assert parts.keys() == whole.keys()
    for key, expected in whole.items():
        assert float((parts[key] - expected).norm()) <= 1e-7 * float(expected.norm()) + 1e-12, key


@ALL
def test_parts_put_the_whole_batch_into_the_queues_once(name: str):
    method = make(name)
    backward_in_parts(method, make_batch(name, 16), PROGRESS, 2, torch.autocast("cpu", enabled=False), 1.0)
    method.after_step(PROGRESS)
    assert all(int(seen) == 16 for key, seen in method.state_dict().items() if key.endswith("seen"))


# Collapse is seen


@ALL
def test_figures_show_when_all_embeddings_are_one(name: str):
    method, batch = make(name), make_batch(name)
    represented = method.represent(batch).detach()
    _, varied = method.objective(represented, batch, PROGRESS)
    _, figures = method.objective(represented[:, :1].expand_as(represented), batch, PROGRESS)
    if "spread" in figures:
        assert figures["spread"] < 1e-3 < varied["spread"]
    else:
        assert figures["used"] <= len(represented) < varied["used"]  # a prototype for each view at most


@ALL
def test_embeddings_of_one_image_have_no_spread_and_those_of_many_have(name: str):
    method, batch = make(name).eval(), make_batch(name)
    with torch.no_grad():
        one, many = method.embed(batch.views[0][:1].expand(8, -1, -1, -1)), method.embed(batch.views[0])
    assert one.shape == many.shape
    assert one.ndim == 2
    assert spread(one) < 1e-3 < spread(many)


# Ready for a GPU without having one: fake tensors have a device but no data, so anything that reads a value on the
# host (.item(), a mask used as an index) or mixes devices fails.


@contextmanager
def fake_cuda() -> Iterator[FakeTensorMode]:
    with FakeTensorMode() as mode, torch.device("cuda"):
        yield mode


def to_fake_cuda(method: Method, mode: FakeTensorMode) -> None:
    for module in method.modules():
        for key, parameter in list(module.named_parameters(recurse=False)):
            fake = mode.from_tensor(parameter).detach().to("cuda")
            setattr(module, key, torch.nn.Parameter(fake, parameter.requires_grad))
        for key, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, key, mode.from_tensor(buffer).to("cuda"))


IN_PARTS: dict[str, Any] = {"parts": 4, "beyond_chance": True, "prototype_norm": True}
WITH_OPTIONS = pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in METHODS),
        pytest.param("carl", IN_PARTS, id="carl-in-parts"),
        pytest.param("carl", {**IN_PARTS, "against": "mean", "negatives": "means", "teacher": 0.9}, id="carl-taught"),
    ],
)


@WITH_OPTIONS
def test_the_whole_step_runs_forward_on_fake_cuda_tensors(name: str, options: dict[str, Any]):
    method, batch = make(name, **options), make_batch(name)
    with fake_cuda() as mode:
        to_fake_cuda(method, mode)
        fake = [mode.from_tensor(view).to("cuda") for view in batch.views]
        assert batch.labels is not None
        indices, labels = (mode.from_tensor(rows).to("cuda") for rows in (batch.indices, batch.labels))
        loss, metrics = method(type(batch)(fake, indices, labels), PROGRESS)
        assert loss.device.type == "cuda"
        assert all(value.device.type == "cuda" for value in metrics.values())
        method.after_step(PROGRESS)


@WITH_OPTIONS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_loss_is_float32_under_autocast_and_its_gradients_are_finite(
    name: str, options: dict[str, Any], dtype: torch.dtype
):
    method = make(name, **options)
    with torch.autocast("cpu", dtype=dtype):
        loss, _ = method(make_batch(name), PROGRESS)
    assert loss.dtype == torch.float32
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in method.parameters())


@WITH_OPTIONS
def test_the_whole_step_runs_forward_and_backward_on_meta_tensors(name: str, options: dict[str, Any]):
    method, batch = make(name, **options).to("meta"), make_batch(name)
    assert batch.labels is not None
    views = [view.to("meta") for view in batch.views]
    loss, _ = method(type(batch)(views, batch.indices.to("meta"), batch.labels.to("meta")), PROGRESS)
    loss.backward()
    method.after_backward(PROGRESS)
    method.after_step(PROGRESS)
    assert all(p.grad is not None and p.grad.device.type == "meta" for p in method.parameters() if p.requires_grad)


def test_fake_tensors_catch_a_host_sync_and_a_mixed_device():
    with fake_cuda():
        value = torch.ones(3, device="cuda")
        with pytest.raises(DataDependentOutputException):
            value.sum().item()
        with pytest.raises(RuntimeError):
            value + torch.ones(3, device="cpu")
