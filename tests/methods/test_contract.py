"""What every method must keep to, whatever it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from carl.config import Config, resolve
from carl.data.batches import Batch
from carl.data.views import Views, pipeline
from carl.methods import METHODS, DataFacts, Method
from carl.optim import build_optimizer

EPOCH, PROGRESS = 3, 0.5  # an epoch of eight in which every part of every method is at work
FACTS = DataFacts(name="shapes", images=64, channels=3, image_size=32, classes=10)
ALL = pytest.mark.parametrize("name", list(METHODS))


def settings(name: str) -> Config:
    method = METHODS[name]
    layers = [
        method.preset(method.default_preset(FACTS), FACTS),
        {"data": {"source": "shapes", "image_size": 32}, "method": {"name": name}},
    ]
    return method.completed(resolve(layers, method.Options))


def make(name: str) -> Method:
    """The method as its training begins; what it does before an epoch is done too."""
    torch.manual_seed(0)
    method = METHODS[name](settings(name), FACTS)
    images = torch.randn(FACTS.images, 3, 32, 32, generator=torch.Generator().manual_seed(1))

    def embed_all(function: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            return torch.arange(len(images)), function(images)

    method.before_epoch(EPOCH, embed_all)
    return method


def make_batch(name: str, size: int = 8, device: str = "cpu") -> Batch:
    """A batch through the real views of the method's pipeline."""
    images = torch.randint(0, 256, (size, 32, 32, 3), dtype=torch.uint8, device=device)
    indices = torch.arange(size, device=device)
    views = Views(pipeline(settings(name).views.pipeline, 32), (0.5, 0.5, 0.5), (0.2, 0.2, 0.2), seed=0)
    return Batch(views(images, indices, 0), indices, torch.arange(size, device=device) % 10)


@ALL
def test_loss_and_figures_are_finite_scalars(name: str):
    loss, metrics = make(name)(make_batch(name), PROGRESS)
    assert loss.ndim == 0
    assert "loss" in metrics
    assert all(value.ndim == 0 and value.isfinite() for value in metrics.values())


@ALL
def test_a_step_lowers_the_loss_on_the_same_batch(name: str):
    method, batch = make(name), make_batch(name, 16)
    optimizer = build_optimizer(method, settings(name).optim)
    losses = []
    for _ in range(8):
        loss, _ = method(batch, PROGRESS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@ALL
def test_gradients_reach_every_trained_parameter(name: str):
    method = make(name)
    method(make_batch(name), PROGRESS)[0].backward()
    for key, parameter in method.named_parameters():
        reached = parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)
        assert reached == parameter.requires_grad, key


@ALL
def test_state_round_trips_strictly(name: str):
    method, other = make(name), make(name)
    with torch.no_grad():
        for value in method.state_dict().values():
            value.add_(1)
    other.load_state_dict(method.state_dict())
    assert all(
        torch.equal(a, b) for a, b in zip(method.state_dict().values(), other.state_dict().values(), strict=True)
    )


@ALL
def test_unknown_presets_are_refused_with_the_known_ones(name: str):
    with pytest.raises(ValueError, match="paper"):
        METHODS[name].preset("papre", FACTS)


# Ready for a GPU without having one: fake tensors have a device but no data, so anything that reads a value on the
# host (.item(), a mask used as an index) or mixes devices fails.


@contextmanager
def fake_cuda() -> Iterator[FakeTensorMode]:
    with FakeTensorMode() as mode, torch.device("cuda"):
        yield mode


def to_fake_cuda(method: Method, mode: FakeTensorMode) -> None:
    for module in method.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                fake = mode.from_tensor(parameter).detach().to("cuda")
                module._parameters[key] = torch.nn.Parameter(fake, parameter.requires_grad)
        for key, buffer in module._buffers.items():
            module._buffers[key] = None if buffer is None else mode.from_tensor(buffer).to("cuda")


@ALL
def test_the_whole_step_runs_forward_on_fake_cuda_tensors(name: str):
    method = make(name)
    with fake_cuda() as mode:
        to_fake_cuda(method, mode)
        loss, metrics = method(make_batch(name, device="cuda"), PROGRESS)
        assert loss.device.type == "cuda"
        assert all(value.device.type == "cuda" for value in metrics.values())


@ALL
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_loss_is_float32_under_autocast_and_its_gradients_are_finite(name: str, dtype: torch.dtype):
    method = make(name)
    with torch.autocast("cpu", dtype=dtype):
        loss, _ = method(make_batch(name), PROGRESS)
    assert loss.dtype == torch.float32
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in method.parameters())


@ALL
def test_the_whole_step_runs_forward_and_backward_on_meta_tensors(name: str):
    method = make(name).to("meta")
    loss, _ = method(make_batch(name, device="meta"), PROGRESS)
    loss.backward()
    method.after_backward(PROGRESS)
    assert all(p.grad is not None and p.grad.device.type == "meta" for p in method.parameters() if p.requires_grad)


def test_fake_tensors_catch_a_host_sync_and_a_mixed_device():
    with fake_cuda():
        value = torch.ones(3, device="cuda")
        with pytest.raises(DataDependentOutputException):
            value.sum().item()
        with pytest.raises(RuntimeError):
            value + torch.ones(3, device="cpu")
