"""kNN against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from carl import nearest
from carl.evaluation import neighbours
from carl.evaluation.neighbours import (
    knn_accuracy,
    knn_right_among,
    knn_scores,
    neighbour_stability,
    shared_neighbours,
    view_separation,
)


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
    monkeypatch.setattr(nearest, "BANK", 7)
    monkeypatch.setattr(neighbours, "CHUNK", 11)
    parts = knn_scores(train, labels, test, (5, 20), 0.1, 4)
    assert all(torch.allclose(whole[k], parts[k], atol=1e-5) for k in whole)


def test_more_neighbours_than_images_are_all_the_images():
    (train, labels), (test, truth) = clouds(30, 0), clouds(20, 1)
    assert knn_accuracy(train, labels, test, truth, (200,))[200] == knn_accuracy(train, labels, test, truth, (30,))[30]


@pytest.mark.parametrize("k", [1, 5, 20])
def test_images_that_judge_each_other_are_each_judged_by_the_others_alone(k: int):
    features, labels = clouds(120, 0)
    expected = []
    for own in range(len(features)):
        others = [row for row in range(len(features)) if row != own]
        reference = KNeighborsClassifier(
            n_neighbors=k, metric="cosine", algorithm="brute", weights=lambda distance: np.exp(-distance / 0.1)
        ).fit(features[others].numpy(), labels[others].numpy())
        expected.append(reference.predict(features[own : own + 1].numpy())[0] == labels[own].item())
    assert knn_right_among(features, labels, k).tolist() == expected


def test_equal_images_judge_each_other_and_never_themselves():
    features, labels = torch.ones(4, 3), torch.tensor([0, 1, 2, 3])
    assert knn_right_among(features, labels, 3).tolist() == [False] * 4
    assert knn_right_among(features, torch.tensor([0, 0, 0, 0]), 20).tolist() == [True] * 4
    pairs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert knn_right_among(pairs, torch.tensor([0, 0, 1, 1]), 1).all()
    assert not knn_right_among(pairs, torch.tensor([0, 1, 0, 1]), 1).any()


def test_views_that_see_the_same_have_stable_neighbours_and_unrelated_ones_only_by_chance():
    generator = torch.Generator().manual_seed(0)
    images, others, third = (torch.randn(400, 16, generator=generator) for _ in range(3))
    assert neighbour_stability(images, 2 * images, images) == 100.0
    assert neighbour_stability(others, third, images) < 5.0  # 5 of 399 by chance


def test_an_image_is_no_neighbour_of_itself():
    images = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.1, 0.9], [0.0, 1.0]])  # the first two are alike, and the last two
    second = images.clone()
    second[0] = torch.tensor([0.0, 1.0])  # cut otherwise, image 0 looks like images 2 and 3
    assert neighbour_stability(images, second, images, count=1) == 75.0
    assert shared_neighbours(images, second, images, count=1).tolist() == [0, 1, 1, 1]


def test_views_of_one_image_are_far_from_those_of_others_only_if_they_are_alike():
    generator = torch.Generator().manual_seed(0)
    images, others = (torch.randn(300, 16, generator=generator) for _ in range(2))
    assert view_separation(images, others) == pytest.approx(0, abs=0.2)
    # Cosines of random directions in D dimensions deviate by 1 / sqrt(D), so the same images are sqrt(D) apart.
    assert view_separation(images, images) == pytest.approx(4, abs=0.2)
