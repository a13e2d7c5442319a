"""What an encoder keeps while it is adapted: batch-norm statistics and first layers."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import nn

from carl.errors import UserError
from carl.models.batch_norm import by_batch_statistics, share_batch_norm
from carl.models.kept_parts import KeptStatistics, keep_layers, keep_statistics, layers_of

NORMS = [(nn.BatchNorm1d(4), (6, 4)), (nn.BatchNorm2d(4), (6, 4, 3, 3)), (BatchNormAct2d(4), (6, 4, 3, 3))]


@pytest.mark.parametrize(("norm", "shape"), NORMS)
def test_in_training_it_computes_what_the_plain_norm_computes_in_eval_mode(norm: nn.Module, shape: tuple[int, ...]):
    plain = nn.Sequential(copy.deepcopy(norm))
    with torch.no_grad():
        plain[0].running_mean.normal_()
        plain[0].running_var.uniform_(0.5, 2)
    kept = copy.deepcopy(plain)
    keep_statistics(kept)
    images = torch.randn(shape) * 3 + 5
    expected = plain.eval()(images)
    kept.train()
    assert torch.equal(kept(images), expected)
    assert torch.equal(kept[0].running_mean, plain[0].running_mean)
    assert kept.state_dict().keys() == plain.state_dict().keys()
    kept(images).sum().backward()
    assert kept[0].bias.grad is not None  # scale and shift still learn


def test_statistics_of_the_batch_and_of_all_processes_leave_kept_norms_alone():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4))
    keep_statistics(model)
    share_batch_norm(model, torch.device("cpu"))
    assert all(isinstance(norm, KeptStatistics) for norm in model)
    images = torch.randn(8, 4) + 10
    model.eval()
    expected = model(images)
    with by_batch_statistics(model):
        assert torch.equal(model(images), expected)


def test_a_copy_keeps_its_statistics_too():
    model = nn.Sequential(nn.BatchNorm1d(4))
    keep_statistics(model)
    twin = copy.deepcopy(model).train()
    assert not twin[0].training


def test_only_the_last_layers_learn():
    encoder = timm.create_model("test_resnet", num_classes=0)
    keep_layers(encoder, 0.75)
    learning = {name.partition(".")[0] for name, p in encoder.named_parameters() if p.requires_grad}
    assert learning == {"layer4"}
    encoder(torch.randn(2, 3, 32, 32)).sum().backward()
    assert encoder.layer1[0].conv1.weight.grad is None
    assert encoder.layer4[0].conv1.weight.grad is not None


def test_layers_are_counted_from_the_image_and_hold_every_weight_once():
    encoder = timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=32)
    layers = layers_of(encoder)
    assert len(layers) == 13
    assert any(parameter is encoder.cls_token for parameter in layers[0])
    assert sorted(id(p) for layer in layers for p in layer) == sorted(id(p) for p in encoder.parameters())


def test_a_network_whose_layers_timm_does_not_know_is_refused_with_a_remedy():
    with pytest.raises(UserError, match=r"set model\.keep_layers=0"):
        keep_layers(nn.Sequential(nn.Linear(2, 2)), 0.5)
