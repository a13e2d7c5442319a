"""Accuracy against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from carl.evaluation.accuracy import measure_accuracy


def test_accuracies_and_confusion_are_scikit_learns():
    generator = np.random.default_rng(0)
    scores, truth = generator.normal(size=(200, 7)), generator.integers(0, 7, 200)
    found = measure_accuracy(scores, truth)
    assert found.top1 == pytest.approx(100 * metrics.accuracy_score(truth, scores.argmax(1)))
    assert found.top5 == pytest.approx(100 * metrics.top_k_accuracy_score(truth, scores, k=5))
    assert found.confusion == metrics.confusion_matrix(truth, scores.argmax(1)).tolist()
    recall = metrics.recall_score(truth, scores.argmax(1), average=None)
    assert found.per_class == pytest.approx((100 * recall).tolist())


def test_a_class_without_test_images_has_no_accuracy_and_few_classes_are_all_among_five():
    found = measure_accuracy(np.eye(3)[[0, 1, 1]], np.array([0, 1, 0]))
    assert found.per_class == [50.0, 100.0, None]
    assert found.top5 == 100


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="not finite"):
        measure_accuracy(np.full((4, 3), np.nan), np.zeros(4, int))
