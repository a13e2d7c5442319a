"""SimCLR and SimSiam: whole methods against lightly's losses."""

from __future__ import annotations

import pytest
import torch
from lightly.loss import NegativeCosineSimilarity, NTXentLoss
from lightly.models.modules import SimCLRProjectionHead
from torch import nn

from tests.methods.examples import PROGRESS, make, make_batch


@pytest.mark.parametrize("temperature", [0.2, 0.5])
def test_simclr_contrasts_both_views_at_its_temperature(temperature: float):
    method, batch = make("simclr", temperature=temperature).eval(), make_batch("simclr")
    with torch.no_grad():
        loss, _ = method(batch, PROGRESS)
        expected = NTXentLoss(temperature)(method.embed(batch.views[0]), method.embed(batch.views[1]))
    assert float(loss) == pytest.approx(float(expected), abs=1e-5)


def test_simclrs_views_share_batch_statistics_unless_told_not_to():
    batch = make_batch("simclr")
    with torch.no_grad():
        together, apart = (make("simclr", views_together=value).represent(batch) for value in (True, False))
    assert not torch.allclose(together, apart, atol=1e-3)


def test_simclrs_head_with_batch_norm_is_that_of_the_authors():
    head = make("simclr", head_norm=True).head
    first, last = (layer for layer in head if isinstance(layer, nn.Linear))
    theirs = SimCLRProjectionHead(first.in_features, first.out_features, last.out_features)  # as their code has it
    ours = [layer for layer in head if not isinstance(layer, nn.Linear)]
    assert [type(layer) for layer in ours] == [nn.BatchNorm1d, nn.ReLU, nn.BatchNorm1d]
    weights = list(theirs.parameters())
    own = [value for name, value in head.named_parameters() if name != f"{len(head) - 2}.bias"]
    assert [w.shape for w in weights] == [w.shape for w in own]
    for value, other in zip(own, weights, strict=True):
        value.data.copy_(other.data)
    features = torch.randn(16, first.in_features)
    torch.testing.assert_close(head(features), theirs(features), atol=1e-5, rtol=1e-5)


def test_simsiam_is_the_mean_negative_cosine_of_predictions_and_the_other_views_embeddings():
    method, batch = make("simsiam").eval(), make_batch("simsiam")
    with torch.no_grad():
        loss, _ = method(batch, PROGRESS)
        embeddings = [method.embed(view) for view in batch.views]
        predictions = [method.head.get_submodule("predictor")(view) for view in embeddings]
        lightly = NegativeCosineSimilarity()
        expected = (lightly(predictions[0], embeddings[1]) + lightly(predictions[1], embeddings[0])) / 2
    assert float(loss) == pytest.approx(float(expected), abs=1e-5)


def test_simsiams_targets_stand_still():
    method, batch = make("simsiam"), make_batch("simsiam")
    represented = method.represent(batch)
    (gradient,) = torch.autograd.grad(method.objective(represented, batch, 0.5)[0], represented)
    assert gradient[:2].abs().sum() > 0
    assert gradient[2:].abs().sum() == 0
