"""SimCLR and SimSiam: whole methods against lightly's losses."""

from __future__ import annotations

import pytest
import torch
from lightly.loss import NegativeCosineSimilarity, NTXentLoss

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
