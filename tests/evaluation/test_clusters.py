"""Clusters against classes."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from carl.evaluation.clusters import Agreement, compare_clusters, most_matched


def compared(found: np.ndarray, truth: np.ndarray, clusters: int, classes: int) -> Agreement:
    """The same images to find the majority with and to judge."""
    return compare_clusters(found, truth, clusters=clusters, train_found=found, train_truth=truth, classes=classes)


def test_classes_under_other_names_agree_wholly():
    truth = np.repeat(np.arange(4), 10)
    found = compared((truth + 1) % 4, truth, 4, 4)
    assert (found.nmi, found.ari, found.matched, found.majority, found.used) == pytest.approx((100, 100, 100, 100, 4))


def test_matched_accuracy_gives_a_class_one_cluster_and_the_majority_any_number():
    truth = np.array([0, 0, 0, 0, 1, 1])
    found = compare_clusters(
        np.array([0, 0, 1, 1, 2, 2]),
        truth,
        clusters=5,
        train_found=np.array([0, 1, 2]),
        train_truth=np.array([0, 0, 1]),
        classes=2,
    )
    assert found.matched == pytest.approx(100 * 4 / 6)
    assert found.majority == 100
    assert found.used == 3
    assert found.clusters == 5


def test_the_majority_is_that_of_the_training_images():
    found = compare_clusters(
        np.array([0, 0, 1]),
        np.array([0, 0, 1]),
        clusters=2,
        train_found=np.array([0, 1]),
        train_truth=np.array([1, 0]),
        classes=2,
    )
    assert found.majority == 0
    assert found.matched == 100


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (4, 4), (3, 6), (6, 3)])
@pytest.mark.parametrize("most", [1, 3, 1000])
def test_no_other_matching_is_better(shape: tuple[int, int], most: int):
    generator = np.random.default_rng(most)
    for _ in range(20):
        table = generator.integers(0, most + 1, shape)
        wide = table if shape[0] <= shape[1] else table.T
        rows = np.arange(len(wide))
        every = (wide[rows, list(columns)].sum() for columns in permutations(range(wide.shape[1]), len(wide)))
        assert most_matched(table) == max(every)


def test_random_clusters_have_an_adjusted_index_near_nothing():
    generator = np.random.default_rng(0)
    truth, clusters = generator.integers(0, 5, 2000), generator.integers(0, 5, 2000)
    assert abs(compared(clusters, truth, 5, 5).ari) < 1
