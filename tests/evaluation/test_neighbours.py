"""kNN against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from carl.evaluation import neighbours
from carl.evaluation.neighbours import knn_accuracy, knn_scores


def clouds(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 4, count)
    centres = np.random.default_rng(9).normal(size=(4, 6))
    return torch.from_numpy(centres[labels] + 1.5 * generator.normal(size=(count, 6))).float(), torch.from_numpy(labels)


@pytest.mark.parametrize("k", [1, 5, 20, 200])
def test_knn_equals_scikit_learns_with_the_same_distance_and_weights(k: int):
    (train, labels), (test, truth) = clouds(300, 0), clouds(120, 1)
    reference = KNeighborsClassifier(
        n_neighbors=k, metric="cosine", algorithm="brute", weights=lambda distance: np.exp(-distance / 0.1)
    ).fit(train.numpy(), labels.numpy())
    scores = knn_scores(train, labels, test, (k,), 0.1, 4)[k]
    expected = reference.predict_proba(test.numpy())
    assert np.allclose((scores / scores.sum(1, keepdim=True)).numpy(), expected, atol=1e-4)
    assert knn_accuracy(train, labels, test, truth, (k,), 0.1)[k] == pytest.approx(
        100 * reference.score(test.numpy(), truth.numpy()), abs=1e-4
    )


def test_reading_the_bank_in_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    (train, labels), (test, _) = clouds(300, 0), clouds(120, 1)
    whole = knn_scores(train, labels, test, (5, 20), 0.1, 4)
    monkeypatch.setattr(neighbours, "BANK_CHUNK", 7)
    monkeypatch.setattr(neighbours, "CHUNK", 11)
    parts = knn_scores(train, labels, test, (5, 20), 0.1, 4)
    assert all(torch.allclose(whole[k], parts[k], atol=1e-5) for k in whole)


def test_more_neighbours_than_images_are_all_the_images():
    (train, labels), (test, truth) = clouds(30, 0), clouds(20, 1)
    assert knn_accuracy(train, labels, test, truth, (200,))[200] == knn_accuracy(train, labels, test, truth, (30,))[30]
