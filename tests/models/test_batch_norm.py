"""Batch norm over all processes: in one process it is torch's own; over two see tests/distributed/test_exactness.py."""

from __future__ import annotations

import copy

import pytest
import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import nn

from carl.models.batch_norm import SharedBatchNorm, by_batch_statistics, share_batch_norm
from carl.models.momentum import KeyEncoder, forward_shuffled

CPU = torch.device("cpu")
KINDS = [
    (nn.BatchNorm1d(5), (6, 5)),
    (nn.BatchNorm1d(5, affine=False), (6, 5)),
    (nn.BatchNorm2d(5, momentum=0.3), (6, 5, 3, 2)),
    (nn.BatchNorm2d(5, momentum=None), (6, 5, 3, 2)),
    (BatchNormAct2d(5), (6, 5, 3, 2)),
]


@pytest.mark.parametrize(("norm", "shape"), KINDS)
def test_in_one_process_it_is_the_norm_that_it_stands_for(norm: nn.Module, shape: tuple[int, ...]):
    plain = nn.Sequential(copy.deepcopy(norm)).double()
    shared = copy.deepcopy(plain)
    share_batch_norm(shared, CPU)
    assert isinstance(shared[0], SharedBatchNorm)
    assert plain.state_dict().keys() == shared.state_dict().keys()
    for _ in range(2):
        images = torch.randn(shape, dtype=torch.float64) * 3 + 100
        weights = torch.randn(shape, dtype=torch.float64)
        results = []
        for model in (plain, shared):
            given = images.clone().requires_grad_()
            output = model(given)
            (output * weights).sum().backward()
            results.append((output, given.grad))
        assert torch.allclose(results[0][0], results[1][0], atol=1e-10)
        assert torch.allclose(results[0][1], results[1][1], atol=1e-10)
    for key, value in plain.state_dict().items():
        assert torch.allclose(value, shared.state_dict()[key]), key
    assert torch.allclose(plain.eval()(images), shared.eval()(images))


def test_half_precision_goes_in_and_comes_out():
    shared = nn.Sequential(nn.BatchNorm1d(4))
    share_batch_norm(shared, CPU)
    assert shared(torch.randn(8, 4).bfloat16()).dtype == torch.bfloat16


def test_on_cuda_it_is_torchs_own():
    model = nn.Sequential(nn.Linear(2, 4), nn.Sequential(nn.BatchNorm1d(4), BatchNormAct2d(4)))
    share_batch_norm(model, torch.device("cuda"))
    assert all(isinstance(norm, nn.SyncBatchNorm) for norm in model[1])


@pytest.mark.parametrize(("groups", "shared"), [(4, False), (1, True)])
def test_keys_that_are_shuffled_into_groups_keep_norms_of_their_own(groups: int, shared: bool):
    encoder = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    holder = nn.Sequential(encoder, KeyEncoder(encoder, nn.Identity(), 4, 8, 0.9, groups))
    share_batch_norm(holder, CPU)
    assert isinstance(encoder[1], SharedBatchNorm)
    assert any(isinstance(module, SharedBatchNorm) for module in holder[1].modules()) == shared


def test_groups_move_the_running_statistics_once_by_the_mean_over_the_groups():
    norm = nn.BatchNorm1d(3, momentum=0.1)
    images = torch.randn(8, 3) + 5
    forward_shuffled(norm, images, groups=4)
    assert norm.momentum == 0.1
    assert torch.allclose(norm.running_mean, 0.1 * images.mean(0), atol=1e-6)  # groups of two, all of one weight


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("norm", "shape"), KINDS)
def test_a_look_by_batch_statistics_sees_what_training_sees_and_leaves_no_trace(
    norm: nn.Module, shape: tuple[int, ...], shared: bool
):
    model = nn.Sequential(copy.deepcopy(norm)).double()
    if shared:
        share_batch_norm(model, CPU)
    images = 3 * torch.randn(shape, dtype=torch.float64) + 2
    trained = copy.deepcopy(model)
    before = copy.deepcopy(model.state_dict())
    model.eval()
    usual = model(images)
    with by_batch_statistics(model):
        seen = model(images)
    assert torch.allclose(seen, trained.train()(images))
    assert not torch.allclose(seen, usual)
    assert torch.equal(model(images), usual)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
