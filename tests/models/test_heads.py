"""Projection head and prototypes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from carl.methods.losses import assignment_consistency, log_assignments, uniform_prior
from carl.models.heads import ProjectionHead, Prototypes


def test_head_is_the_papers_512_512_128_with_batch_norm_and_relu():
    head = ProjectionHead(512, 512, 128, hidden_layers=1, batch_norm=True)
    kinds = [type(layer) for layer in head]
    assert kinds == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    assert [layer.weight.shape for layer in head if isinstance(layer, nn.Linear)] == [(512, 512), (128, 512)]
    assert head[0].bias is None  # the batch norm has one


@pytest.mark.parametrize(("layers", "linears"), [(0, 1), (1, 2), (2, 3)])
def test_depth_is_the_number_of_hidden_layers(layers: int, linears: int):
    head = ProjectionHead(8, 16, 4, hidden_layers=layers, batch_norm=False)
    assert sum(isinstance(layer, nn.Linear) for layer in head) == linears
    assert not any(isinstance(layer, nn.BatchNorm1d) for layer in head)
    assert head(torch.zeros(3, 8)).shape == (3, 4)


def test_energies_are_inner_products_with_the_prototypes():
    prototypes, z = Prototypes(4, 6), torch.randn(3, 4)
    weight = prototypes.linear.weight.detach()
    expected = [[float(z[i] @ weight[j]) for j in range(6)] for i in range(3)]
    assert torch.allclose(prototypes(z), torch.tensor(expected), atol=1e-6)


def test_options_normalise_scale_and_shift_the_energies():
    z = torch.randn(5, 4)
    cosine = Prototypes(4, 6, normalize=True, embedding_norm="l2", temperature=0.1)
    assert torch.allclose(
        cosine(z), F.cosine_similarity(z[:, None], cosine.linear.weight[None], dim=2) / 0.1, atol=1e-5
    )
    biased = Prototypes(4, 6, bias=True)
    assert torch.allclose(biased(torch.zeros(1, 4))[0], biased.linear.bias)


@pytest.mark.parametrize("bias", [False, True])
def test_parts_of_the_dimensions_add_up_to_the_energies(bias: bool):
    prototypes = Prototypes(12, 5, bias, normalize=True, embedding_norm="batch-l2", temperature=0.3, parts=4).double()
    z = torch.randn(6, 12, dtype=torch.float64)
    by_part = prototypes.by_part(z)
    assert by_part.shape == (6, 4, 5)
    assert torch.allclose(by_part.sum(1), prototypes(z))
    if not bias:  # the second part sees dimensions 3 to 5 alone
        unit = F.normalize(prototypes.batch_norm(z), dim=1)
        weight = F.normalize(prototypes.linear.weight, dim=1)
        assert torch.allclose(by_part[:, 1], unit[:, 3:6] @ weight[:, 3:6].T / 0.3)
    assert torch.autograd.gradcheck(prototypes.by_part, (z.requires_grad_(),))


def test_batch_normalised_embeddings_with_scaled_prototypes_start_with_logits_of_that_size():
    torch.manual_seed(0)
    prototypes = Prototypes(128, 50, embedding_norm="batch", scale=128**-0.5)
    energies = prototypes(torch.randn(512, 128) * torch.logspace(-2, 2, 128))
    assert energies.std().item() == pytest.approx(1.0, rel=0.1)
    assert not list(prototypes.batch_norm.parameters())


def test_batch_l2_is_batch_norm_and_then_unit_length_and_its_gradient_is_right():
    torch.manual_seed(0)
    prototypes = Prototypes(6, 5, embedding_norm="batch-l2", scale=1.5).double()
    z = (3 * torch.randn(8, 6, dtype=torch.float64) + 1).requires_grad_()
    mean, deviation = z.mean(0), z.var(0, unbiased=False)
    rows = ((z - mean) / (deviation + 1e-5).sqrt()).detach()
    expected = [[float(row @ c / row.norm()) for c in prototypes.linear.weight.detach()] for row in rows]
    assert torch.allclose(prototypes(z), torch.tensor(expected, dtype=torch.float64))
    assert torch.autograd.gradcheck(prototypes, (z,))


def test_many_random_prototypes_on_the_sphere_make_carls_terms_those_of_simclr():
    """-log K<p_a, p_b> tends to -s^2 cos(a, b), and KL to half of (mean of exp(s^2 cos) - 1)."""
    torch.manual_seed(0)
    s, count = 0.7, 200_000
    prototypes = Prototypes(8, count, embedding_norm="l2", scale=s)
    z = F.normalize(torch.randn(64, 8), dim=1)
    with torch.no_grad():
        log_p = log_assignments(prototypes(z))
        agreed = math.log(count) - assignment_consistency(log_p[:32], log_p[32:])
        prior = uniform_prior(log_p[None])
    cosines = z @ z.T
    assert agreed.item() == pytest.approx(s**2 * (z[:32] * z[32:]).sum(1).mean().item(), abs=5e-3)
    assert prior.item() == pytest.approx(((s**2 * cosines).exp().mean().item() - 1) / 2, rel=0.1)
