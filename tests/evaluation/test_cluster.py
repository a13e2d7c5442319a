"""Clusters against classes."""

from __future__ import annotations

import numpy as np
import pytest

from carl.evaluation import compare_clusters


def test_classes_under_other_names_agree_wholly():
    truth = np.repeat(np.arange(4), 10)
    found = compare_clusters((truth + 1) % 4, truth, 4, (truth + 1) % 4, truth, 4)
    assert (found.nmi, found.ari, found.matched, found.majority, found.used) == pytest.approx((100, 100, 100, 100, 4))


def test_matched_accuracy_gives_a_class_one_cluster_and_the_majority_any_number():
    truth = np.array([0, 0, 0, 0, 1, 1])
    found = compare_clusters(np.array([0, 0, 1, 1, 2, 2]), truth, 5, np.array([0, 1, 2]), np.array([0, 0, 1]), 2)
    assert found.matched == pytest.approx(100 * 4 / 6)
    assert found.majority == 100
    assert found.used == 3
    assert found.clusters == 5


def test_the_majority_is_that_of_the_training_images():
    found = compare_clusters(np.array([0, 0, 1]), np.array([0, 0, 1]), 2, np.array([0, 1]), np.array([1, 0]), 2)
    assert found.majority == 0
    assert found.matched == 100


def test_random_clusters_have_an_adjusted_index_near_nothing():
    generator = np.random.default_rng(0)
    truth, clusters = generator.integers(0, 5, 2000), generator.integers(0, 5, 2000)
    assert abs(compare_clusters(clusters, truth, 5, clusters, truth, 5).ari) < 1
