"""Optimisers against independent updates, and schedules."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from carl.config import MethodOptions, OptimConfig, resolve
from carl.optim import build_optimizer, cosine, peak_rate, rate_at


def settings(**values: object) -> OptimConfig:
    return resolve([{"data": {"source": "shapes"}, "optim": values}], MethodOptions).optim


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2, bias=False))


def one_step(model: nn.Module, optim: OptimConfig, steps: int = 1) -> nn.Module:
    model = copy.deepcopy(model)
    optimizer = build_optimizer(model, optim)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4, generator=torch.Generator().manual_seed(step))).square().sum().backward()
        optimizer.step()
    return model


def test_lars_adapts_and_decays_weights_and_leaves_1d_parameters_to_plain_sgd():
    model = small_model()
    optim = settings(name="lars", lr=0.5, weight_decay=0.01, momentum=0.0)
    after = dict(one_step(model, optim).named_parameters())
    model(torch.randn(8, 4, generator=torch.Generator().manual_seed(0))).square().sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None
        if p.ndim > 1:  # You et al. 2017, Eq. 6
            local = 0.001 * p.norm() / (p.grad.norm() + 0.01 * p.norm())
            expected = p - 0.5 * local * (p.grad + 0.01 * p)
        else:
            expected = p - 0.5 * p.grad
        assert torch.allclose(after[name], expected, rtol=1e-5, atol=1e-7), name


def test_lars_adapts_weights_without_decay_too():
    model = small_model()
    after = dict(one_step(model, settings(name="lars", lr=0.5, weight_decay=0.0, momentum=0.0)).named_parameters())
    model(torch.randn(8, 4, generator=torch.Generator().manual_seed(0))).square().sum().backward()
    weight = model[0].weight
    expected = weight - 0.5 * 0.001 * weight.norm() / weight.grad.norm() * weight.grad
    assert torch.allclose(after["0.weight"], expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_biases_and_norms_are_never_decayed(name: str):
    model = small_model()
    optimizer = build_optimizer(model, settings(name=name, lr=0.1, weight_decay=0.3))
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] > 0 for p in group["params"]}
    assert {n for n, p in model.named_parameters() if id(p) in decayed} == {"0.weight", "2.weight"}


def test_all_trained_parameters_and_no_frozen_one_are_given_to_the_optimiser():
    model = small_model()
    model[2].weight.requires_grad_(False)
    optimizer = build_optimizer(model, settings(name="sgd"))
    given = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert {n for n, p in model.named_parameters() if id(p) in given} == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_rate_decays_by_a_cosine_from_lr_to_lr_end():
    optim = settings(lr=0.6, lr_end=0.0006)
    assert rate_at(optim, 256, 0.0, 200) == pytest.approx(0.6)
    assert rate_at(optim, 256, 0.5, 200) == pytest.approx((0.6 + 0.0006) / 2)
    assert rate_at(optim, 256, 1.0, 200) == pytest.approx(0.0006)


def test_rate_equals_torchs_cosine_annealing():
    parameter = nn.Parameter(torch.zeros(1))
    reference = torch.optim.SGD([parameter], lr=0.6)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(reference, T_max=50, eta_min=0.0006)
    for step in range(50):
        assert rate_at(settings(), 256, step / 50, 10) == pytest.approx(reference.param_groups[0]["lr"], rel=1e-6)
        reference.step()
        scheduler.step()


def test_warm_up_is_linear_and_then_hands_over_to_the_schedule():
    optim = settings(lr=1.0, lr_end=0.0, warmup_epochs=2)
    assert rate_at(optim, 256, 0.0, 10) == 0.0
    assert rate_at(optim, 256, 0.1, 10) == pytest.approx(0.5)
    assert rate_at(optim, 256, 0.2, 10) == pytest.approx(1.0)
    assert rate_at(optim, 256, 0.6, 10) == pytest.approx(cosine(0.5, 1.0, 0.0))


def test_scaling_the_rate_with_the_batch_leaves_the_configuration_alone():
    optim = settings(lr=0.6, scale_lr=True)
    assert peak_rate(optim, 1024) == pytest.approx(2.4)
    assert rate_at(optim, 1024, 1.0, 10) == pytest.approx(0.0024)
    assert optim.lr == 0.6
    assert peak_rate(settings(lr=0.6), 1024) == 0.6


def test_with_nothing_excluded_all_parameters_are_adapted_and_decayed():
    model = small_model()
    optim = settings(name="lars", lr=0.5, weight_decay=0.01, momentum=0.0, exclude="none")
    after = dict(one_step(model, optim).named_parameters())
    model(torch.randn(8, 4, generator=torch.Generator().manual_seed(0))).square().sum().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None
        local = 0.001 * p.norm() / (p.grad.norm() + 0.01 * p.norm()) if p.norm() > 0 else 1.0  # a bias of zeros
        assert torch.allclose(after[name], p - 0.5 * local * (p.grad + 0.01 * p), rtol=1e-5, atol=1e-7), name


def test_clipped_trust_never_raises_the_rate_of_a_layer():
    model = small_model()
    model(torch.randn(8, 4, generator=torch.Generator().manual_seed(0))).square().sum().backward()
    first, last = model[0].weight, model[2].weight
    with torch.no_grad():
        first.mul_(1e4)  # batch norm comes after it, so its gradient shrinks as it grows: the rate would be raised
    model.zero_grad()
    optim = settings(name="lars", lr=0.5, weight_decay=0.0, momentum=0.0, trust_coefficient=0.02, trust_clip=True)
    after = dict(one_step(model, optim).named_parameters())
    model(torch.randn(8, 4, generator=torch.Generator().manual_seed(0))).square().sum().backward()
    rates = [0.02 * weight.norm() / weight.grad.norm() for weight in (first, last)]
    assert rates[0] > 0.5 > rates[1]  # apex's LARC: the smaller of the two rates
    assert torch.allclose(after["0.weight"], first - 0.5 * first.grad, rtol=1e-5)
    assert torch.allclose(after["2.weight"], last - rates[1] * last.grad, rtol=1e-5)
