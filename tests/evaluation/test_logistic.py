"""The cached probe against scikit-learn's converged logistic regression, and its choice of the penalty."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch.nn import functional as F

from carl.errors import UserError
from carl.evaluation import logistic
from carl.evaluation.logistic import choose_penalty, fit_logistic, linear_probe, stratified, train_probe


def features(count: int, seed: int, classes: int = 5, size: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    """Correlated features that are never negative, as those after a ReLU and a mean are."""
    fixed = np.random.default_rng(99)
    mix, centres = (
        fixed.normal(size=(size, size)) * (np.arange(1, size + 1) ** -0.7)[:, None],
        fixed.normal(size=(classes, size)),
    )
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, count)
    points = (centres[labels] + 2 * generator.normal(size=(count, size))) @ mix
    return torch.from_numpy(np.maximum(points, 0)).float(), torch.from_numpy(labels)


@pytest.mark.parametrize("penalty", [1e-1, 1e-3, 1e-5])
def test_objective_and_coefficients_are_those_of_scikit_learn(penalty: float):
    train, labels = features(1500, 0)
    ours = fit_logistic(train, labels, 5, penalty)
    assert ours.converged
    points = ((train - ours.mean) / ours.std).double()
    reference = LogisticRegression(C=1 / (penalty * len(train)), tol=1e-9, max_iter=10_000).fit(points, labels)
    coefficients = torch.from_numpy(reference.coef_)
    scores = points @ coefficients.T + torch.from_numpy(reference.intercept_)
    objective = F.cross_entropy(scores, labels).item() + penalty / 2 * coefficients.square().sum().item()
    assert ours.objective == pytest.approx(objective, rel=1e-5)
    assert ((ours.weight - coefficients).norm() / coefficients.norm()).item() < 5e-3
    assert np.allclose(ours.bias.numpy(), reference.intercept_ - reference.intercept_.mean(), atol=0.02)


def test_features_are_standardised_by_the_training_images_alone():
    train, labels = features(300, 0)
    found = fit_logistic(train, labels, 5, 1e-3)
    assert torch.allclose(found.mean, train.mean(0), atol=1e-5)
    assert torch.allclose(found.std, train.std(0, correction=0), atol=1e-5)
    weight, bias = found.for_raw_features()
    assert torch.allclose(train @ weight.T + bias, found.scores(train), atol=1e-3)


def test_scale_and_constant_features_do_not_matter():
    (train, labels), (test, truth) = features(400, 0), features(200, 1)
    usual = linear_probe(train, labels, test, truth, penalties=[1e-3])

    def other(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([1000 * x, torch.full((len(x), 1), 7.0)], dim=1)

    changed = linear_probe(other(train), labels, other(test), truth, penalties=[1e-3])
    assert changed.accuracy.top1 == pytest.approx(usual.accuracy.top1, abs=0.6)


def test_the_penalty_is_chosen_without_a_look_at_the_test_images():
    (train, labels), (test, truth) = features(400, 0), features(200, 1)
    first = linear_probe(train, labels, test, truth)
    second = linear_probe(train, labels, torch.randn_like(test), truth.flip(0))
    assert first.classifier.penalty == second.classifier.penalty
    assert torch.equal(first.classifier.weight, second.classifier.weight)
    assert first.validation[first.classifier.penalty] == max(first.validation.values())


def test_images_held_out_have_no_say_in_the_fit_that_they_judge(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logistic, "JUDGED", 40)  # one tenth
    train, labels = features(400, 0)
    held = torch.from_numpy(stratified(labels.numpy(), 0.1, 3))
    _, before = choose_penalty(train, labels, 5, seed=3)
    spoiled = train.clone()
    spoiled[held] = 1e3 * torch.randn(len(held), train.shape[1], generator=torch.Generator().manual_seed(0))
    _, after = choose_penalty(spoiled, labels, 5, seed=3)
    assert max(after.values()) < 50 < max(before.values())


@pytest.mark.parametrize("turns", [1, 2, 10])
def test_of_few_images_every_tenth_is_held_out_in_turn_as_scikit_learn_would(
    monkeypatch: pytest.MonkeyPatch, turns: int
):
    """With enough images to judge by, fewer tenths are held out."""
    train, labels = features(400, 0)
    numbers = labels.numpy()
    tenths = [stratified(numbers, 0.1, 3, part) for part in range(10)]
    if turns < 10:
        monkeypatch.setattr(logistic, "JUDGED", turns * len(tenths[0]))
    _, found = choose_penalty(train, labels, 5, penalties=[1e-2], seed=3)
    together = np.concatenate(tenths)
    assert len(set(together)) == len(together) > 380
    accuracies = {
        count: 100 * sum(right_by_scikit_learn(train, numbers, held) for held in tenths[:count])
        / sum(map(len, tenths[:count]))
        for count in (1, 2, 10)
    }  # fmt: skip
    assert len({round(accuracy, 2) for accuracy in accuracies.values()}) == 3  # so that they tell which were judged
    assert found[1e-2] == pytest.approx(accuracies[turns], abs=0.2)


def right_by_scikit_learn(train: torch.Tensor, labels: np.ndarray, held: np.ndarray) -> int:
    """How many of the images held out a classifier of the others gets right."""
    rest = np.setdiff1d(np.arange(len(train)), held)
    scaler = StandardScaler().fit(train[rest])
    reference = LogisticRegression(C=1 / (1e-2 * len(rest)), tol=1e-6, max_iter=10_000)
    reference.fit(scaler.transform(train[rest]), labels[rest])
    return int((reference.predict(scaler.transform(train[held])) == labels[held]).sum())


def test_numpy_arrays_give_what_tensors_give():
    (train, labels), (test, truth) = features(300, 0), features(100, 1)
    tensors = linear_probe(train, labels, test, truth, penalties=[1e-2])
    arrays = linear_probe(train.numpy(), labels.numpy(), test.numpy(), truth.numpy(), penalties=[1e-2])
    assert tensors.accuracy == arrays.accuracy


def test_more_features_than_images_and_one_image_a_class_still_converge():
    train, labels = torch.randn(10, 64, generator=torch.Generator().manual_seed(0)), torch.arange(10) % 5
    assert train_probe(train, labels, 5)[0].converged
    found, validation = train_probe(train[:5], labels[:5], 5)
    assert found.converged
    assert validation == {}


def test_a_part_is_stratified_and_no_class_is_left_out():
    labels = np.repeat([0, 1, 2], [500, 100, 3])
    chosen = stratified(labels, 0.1, seed=0)
    assert np.bincount(labels[chosen]).tolist() == [50, 10, 1]
    assert (stratified(labels, 0.1, seed=0) == chosen).all()
    assert (stratified(labels, 0.1, seed=1) != chosen).any()


def test_what_does_not_go_together_is_refused():
    (train, labels), (test, truth) = features(30, 0), features(20, 1)
    with pytest.raises(UserError, match="do not go together"):
        linear_probe(train, labels[:-1], test, truth)
    with pytest.raises(UserError, match="not finite"):
        linear_probe(train * torch.nan, labels, test, truth)
    with pytest.raises(UserError, match="above 0"):
        linear_probe(train, labels, test, truth, penalties=[0.0])


def test_a_class_of_one_image_does_not_keep_the_penalty_from_being_chosen():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    features = torch.randn(300, 8, generator=generator) + 2 * torch.nn.functional.one_hot(labels, 8)
    _, validation = train_probe(features, labels, 3)
    odd = torch.cat([labels, torch.tensor([3])])
    classifier, with_odd = train_probe(torch.cat([features, torch.full((1, 8), 9.0)]), odd, 4)
    assert with_odd
    assert set(with_odd) & set(validation)
    assert classifier.penalty in with_odd
    _, none = train_probe(features[:3], torch.arange(3), 3)
    assert none == {}
