"""The cached linear probe: multinomial logistic regression on features that were extracted once.

Minimised is  mean cross-entropy + penalty / 2 |W|^2  with free biases, which is scikit-learn's LogisticRegression with
C = 1 / (penalty * N). It is solved by Newton's method; the linear system of a step by conjugate gradients, which need
only products with the Hessian, preconditioned in the eigenbasis of the features' covariance, where the Hessian is
nearly diagonal. L-BFGS needs some hundred passes over the data where this needs some ten.

Our own, because the fit is 33 times as fast as scikit-learn's with the same coefficients (`results/benchmarks`), and
runs on a GPU too.

Shapes: N images, D features, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from carl.errors import UserError
from carl.evaluation.accuracy import Accuracy, Array, measure_accuracy

# Of the mean loss, strongest first. With N = 50,000 this is C of scikit-learn from 2e-5 to 20.
PENALTIES: tuple[float, ...] = tuple(10 ** (-exponent / 2) for exponent in range(13))  # 1 to 1e-6
VALIDATION = 0.1  # of the training images, held out to choose the penalty on
JUDGED = 5000  # images that a penalty is judged on at least, where there are so many: a tenth, or tenths in turn
FEW_PENALTY = 1e-2  # where some class has a single image, so that nothing can be held out
PATIENCE = 2  # penalties that are worse than the best so far before the search ends
CHUNK = 2048  # rows at a time: they stay in the cache between the two products that read them
NEWTON_STEPS = 100
CG_STEPS = 200
TOLERANCE = 1e-3  # a Newton step shorter than this part of the coefficients is the last
ROUGH_TOLERANCE = 1e-2  # while the penalty is being chosen


@dataclass(frozen=True)
class Logistic:
    """A linear classifier of features, standardised as in its training."""

    weight: Tensor  # (C, D), of standardised features
    bias: Tensor  # (C,)
    mean: Tensor  # (D,)
    std: Tensor  # (D,)
    penalty: float
    objective: float
    converged: bool

    def scores(self, features: Tensor) -> Tensor:
        """Logits (M, C)."""
        parts = features.split(65_536)
        return torch.cat([(part - self.mean) / self.std @ self.weight.T + self.bias for part in parts])

    def for_raw_features(self) -> tuple[Tensor, Tensor]:
        """Weight (C, D) and bias (C,) of the same classifier without the standardisation."""
        weight = self.weight / self.std
        return weight, self.bias - weight @ self.mean


@dataclass(frozen=True)
class ProbeResult:
    accuracy: Accuracy
    classifier: Logistic
    validation: dict[float, float]  # penalty -> accuracy on the images held out; empty if it was given


@dataclass(frozen=True)
class _Problem:
    """Standardised features, labels, and the eigenbasis of the features' second moments.

    Everything is class-major, (C, N) and (C, D): with ten classes MKL is up to five times as fast that way.
    """

    features: Tensor  # (N, D) float32
    labels: Tensor  # (N,)
    classes: int
    directions: Tensor  # (D, D), columns
    moments: Tensor  # (D,) mean square along each direction

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, classes: int, like: _Problem | None = None) -> _Problem:
        """With `like`, a problem with nearly the same features, its eigenbasis is taken, which saves seconds."""
        if like is not None:
            return cls(features, labels, classes, like.directions, like.moments)
        gram = features.T @ features / len(features)
        moments, directions = torch.linalg.eigh(gram.double())
        return cls(features, labels, classes, directions.float(), moments.clamp(min=0).float())


@dataclass(frozen=True)
class _Point:
    """Coefficients with what a Newton step needs: weight and bias in one (C, D + 1) matrix, the bias last."""

    coefficients: Tensor
    objective: float
    gradient: Tensor
    probabilities: Tensor  # (C, N)


def _logits(coefficients: Tensor, features: Tensor) -> Tensor:
    return torch.addmm(coefficients[:, -1:], coefficients[:, :-1], features.T)


def _evaluate(problem: _Problem, coefficients: Tensor, penalty: float) -> _Point:
    weight, count = coefficients[:, :-1], len(problem.features)
    gradient = torch.zeros_like(coefficients)
    probabilities = weight.new_empty(problem.classes, count)
    loss = torch.zeros((), dtype=torch.float64, device=weight.device)
    for start in range(0, count, CHUNK):
        part = slice(start, min(start + CHUNK, count))
        features, labels = problem.features[part], problem.labels[None, part]
        log_p = _logits(coefficients, features).log_softmax(0)
        loss -= log_p.gather(0, labels).sum(dtype=torch.float64)
        p = probabilities[:, part] = log_p.exp()
        wrong = p.scatter_add(0, labels, p.new_full(labels.shape, -1.0))
        gradient[:, :-1] += wrong @ features
        gradient[:, -1] += wrong.sum(1)
    gradient /= count
    gradient[:, :-1] += penalty * weight
    objective = loss.item() / count + 0.5 * penalty * weight.double().square().sum().item()
    return _Point(coefficients, objective, gradient, probabilities)


def _hessian_product(problem: _Problem, point: _Point, penalty: float, vector: Tensor) -> Tensor:
    """H v, where H is the Hessian at `point`."""
    product = torch.zeros_like(vector)
    count = len(problem.features)
    for start in range(0, count, CHUNK):
        features, p = problem.features[start : start + CHUNK], point.probabilities[:, start : start + CHUNK]
        change = p * _logits(vector, features)
        change -= p * change.sum(0)
        product[:, :-1] += change @ features
        product[:, -1] += change.sum(1)
    product /= count
    product[:, :-1] += penalty * vector[:, :-1]
    return product


def _newton_direction(problem: _Problem, point: _Point, penalty: float, accuracy: float) -> Tensor:
    """H^-1 (-gradient) by conjugate gradients, to a relative residual of `accuracy`."""
    # Were all images alike sure, H of class c would be `sureness[c]` times the second moments, plus the penalty.
    sureness = (point.probabilities * (1 - point.probabilities)).mean(1, keepdim=True).clamp(min=1e-6)
    scale = sureness * problem.moments + penalty  # (C, D), in the eigenbasis

    def precondition(residual: Tensor) -> Tensor:
        inner = (residual[:, :-1] @ problem.directions / scale) @ problem.directions.T
        both = torch.cat([inner, residual[:, -1:] / sureness], dim=1)
        # What all classes have in common changes no probability; without it the penalty is least, the system definite.
        return both - both.mean(0)

    direction = torch.zeros_like(point.gradient)
    residual = -point.gradient
    search = precondition(residual)
    before = start = (residual * search).sum()
    for _ in range(CG_STEPS):
        product = _hessian_product(problem, point, penalty, search)
        length = before / (search * product).sum()
        direction += length * search
        residual -= length * product
        preconditioned = precondition(residual)
        now = (residual * preconditioned).sum()
        if not now > accuracy**2 * start:
            break
        search = preconditioned + now / before * search
        before = now
    return direction


def _minimise(problem: _Problem, penalty: float, start: Tensor, tolerance: float) -> tuple[_Point, bool]:
    """Newton's method from `start`; whether it converged."""
    point = _evaluate(problem, start, penalty)
    for _ in range(NEWTON_STEPS):
        # A tenth is exact enough: the next step begins from where this one ends (Eisenstat and Walker 1996).
        direction = _newton_direction(problem, point, penalty, accuracy=0.1)
        slope = (direction * point.gradient).sum().item()
        if slope >= 0:  # rounding is all that is left of the gradient
            return point, True
        length, new = 1.0, _evaluate(problem, point.coefficients + direction, penalty)
        # Armijo's rule, with room for the rounding of float32.
        while not new.objective <= point.objective + 1e-4 * length * slope + 1e-7 * abs(point.objective):
            length /= 2
            if length < 1e-4:
                return point, -slope < 1e-6 * max(point.objective, 1e-6)
            new = _evaluate(problem, point.coefficients + length * direction, penalty)
        moved = length * direction[:, :-1].norm().item()
        point = new
        if length == 1.0 and moved <= tolerance * point.coefficients[:, :-1].norm().item():
            return point, True
    return point, False


def fit_logistic(
    features: Tensor, labels: Tensor, classes: int, penalty: float, start: Logistic | None = None
) -> Logistic:
    """The converged classifier for one penalty."""
    mean, std = _standard(features)
    return _fit(_Problem.of((features - mean) / std, labels, classes), mean, std, penalty, start)


def _standard(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each feature; 1 for a feature that never changes."""
    std, mean = torch.std_mean(features, dim=0, correction=0)
    return mean, torch.where(std > 1e-6 * mean.abs().clamp(min=1e-6), std, 1.0)


def _fit(
    problem: _Problem,
    mean: Tensor,
    std: Tensor,
    penalty: float,
    start: Logistic | None,
    tolerance: float = TOLERANCE,
) -> Logistic:
    coefficients = problem.features.new_zeros(problem.classes, problem.features.shape[1] + 1)
    if start is not None:
        coefficients = torch.cat([start.weight, start.bias[:, None]], dim=1)
    point, converged = _minimise(problem, penalty, coefficients, tolerance)
    weight, bias = point.coefficients[:, :-1].contiguous(), point.coefficients[:, -1]
    return Logistic(
        weight=weight,
        bias=bias,
        mean=mean,
        std=std,
        penalty=penalty,
        objective=point.objective,
        converged=converged,
    )


def stratified(labels: np.ndarray, fraction: float, seed: int, part: int = 0) -> np.ndarray:
    """Row numbers of a random part of the images, in order: the same part of every class, and at least one image.

    Each number of `part` gives other images, until a class has no more.
    """
    generator = np.random.default_rng(seed)
    chosen = []
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        size = max(1, round(fraction * len(places)))
        chosen.append(generator.permutation(places)[part * size : (part + 1) * size])
    return np.sort(np.concatenate(chosen))


@dataclass
class _Fold:
    """Images that are held out, and the latest classifier of the others."""

    held: Tensor  # (N,), which are
    problem: _Problem
    mean: Tensor
    std: Tensor
    classifier: Logistic | None = None

    @classmethod
    def of(
        cls, features: Tensor, labels: Tensor, classes: int, places: np.ndarray, like: _Problem | None = None
    ) -> _Fold:
        held = torch.zeros(len(labels), dtype=torch.bool)
        held[torch.from_numpy(places)] = True
        held = held.to(features.device)
        mean, std = _standard(features[~held])
        return cls(held, _Problem.of((features[~held] - mean) / std, labels[~held], classes, like), mean, std)

    def count_right(self, features: Tensor, labels: Tensor, penalty: float) -> int:
        self.classifier = _fit(self.problem, self.mean, self.std, penalty, self.classifier, ROUGH_TOLERANCE)
        return int((self.classifier.scores(features[self.held]).argmax(1) == labels[self.held]).sum())


def choose_penalty(
    features: Tensor, labels: Tensor, classes: int, penalties: Sequence[float] = PENALTIES, seed: int = 0
) -> tuple[Logistic | None, dict[float, float]]:
    """A classifier with the penalty that is best on images held out, and the accuracies there; ties: the simpler.

    A tenth is held out, and with few images several tenths in turn, since on 1,000 of them the accuracy alone is off by
    more than the penalty matters. From the strongest penalty on, each solution is the start of the next. A class of
    one image is not held out; None where all are such.
    """
    known = labels.cpu().numpy()
    several = np.flatnonzero(np.bincount(known)[known] > 1)
    if not len(several):
        return None, {}
    turns = min(round(1 / VALIDATION), -(-JUDGED // max(1, round(VALIDATION * len(several)))))
    parts = [several[stratified(known[several], VALIDATION, seed, part)] for part in range(turns)]
    folds: list[_Fold] = []
    for part in parts:
        if len(part):
            folds.append(_Fold.of(features, labels, classes, part, folds[0].problem if folds else None))
    judged = sum(int(fold.held.sum()) for fold in folds)
    best: Logistic | None = None
    found: dict[float, float] = {}
    for penalty in sorted(penalties, reverse=True):
        found[penalty] = 100 * sum(fold.count_right(features, labels, penalty) for fold in folds) / judged
        if best is None or found[penalty] > found[best.penalty]:
            best = folds[0].classifier
        if list(found.values()).index(max(found.values())) < len(found) - PATIENCE:
            break
    return best, found


def train_probe(
    features: Tensor, labels: Tensor, classes: int, penalties: Sequence[float] = PENALTIES, seed: int = 0
) -> tuple[Logistic, dict[float, float]]:
    """A classifier of all these features with the penalty chosen among `penalties` on a part of them."""
    if len(penalties) == 1:
        return fit_logistic(features, labels, classes, penalties[0]), {}
    best, validation = choose_penalty(features, labels, classes, penalties, seed)
    if best is None:
        return fit_logistic(features, labels, classes, FEW_PENALTY), {}
    return fit_logistic(features, labels, classes, best.penalty, best), validation


def linear_probe(
    train_features: Array,
    train_labels: Array,
    test_features: Array,
    test_labels: Array,
    penalties: Sequence[float] = PENALTIES,
    seed: int = 0,
) -> ProbeResult:
    """Logistic regression on standardised training features, judged on the test features; NumPy arrays or tensors.

    The penalty is chosen on training images that are held out in tenths, drawn by `seed`; the test images have no say.
    """
    train, test = torch.as_tensor(train_features).float(), torch.as_tensor(test_features).float()
    labels, truth = torch.as_tensor(train_labels).long(), torch.as_tensor(test_labels).long()
    if train.ndim != 2 or len(train) != len(labels) or len(test) != len(truth) or train.shape[1:] != test.shape[1:]:
        raise UserError(
            f"features {tuple(train.shape)} and {tuple(test.shape)} with {len(labels)} and {len(truth)} labels do not "
            "go together; give (N, D) features and N labels, the same D twice"
        )
    if not len(penalties) or min(penalties) <= 0:
        raise UserError(f"penalties={list(penalties)}: each must be above 0; use for example 1e-3")
    if not bool(torch.isfinite(train).all() & torch.isfinite(test).all()):
        raise UserError("the features hold values that are not finite; look at the encoder that made them")
    classes = int(torch.cat([labels, truth.to(labels.device)]).max()) + 1
    classifier, validation = train_probe(train, labels, classes, penalties, seed)
    return ProbeResult(measure_accuracy(classifier.scores(test), truth), classifier, validation)
