"""Linear classifiers of a frozen encoder's features, by SGD on random crops: what `linear` and `transfer` train.

The encoder is frozen and in eval mode; a linear layer on its features is trained with SGD on random crops and flips.
Gradients of a softmax layer are two matrix products, so none go through autograd, and several rates cost little more
than one: the encoder's forward pass, which they share, is nearly all of the time.

Shapes: R classifiers, B images, D features, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from carl import distributed
from carl.errors import UserError
from carl.evaluation.accuracy import Accuracy, measure_accuracy
from carl.evaluation.evaluation_data import EvaluationData
from carl.evaluation.features import frozen
from carl.evaluation.logistic import VALIDATION, stratified
from carl.evaluation.protocols.linear import LinearRecipe


@dataclass(frozen=True)
class LinearResult:
    accuracy: Accuracy  # on the test images after the last epoch; MoCo's script reports the best epoch's
    rate: float
    validation: dict[float, float]  # rate -> accuracy on the images held out; empty with a single rate


class Classifiers:
    """Linear softmax classifiers of the same features, each with a rate of its own, trained by SGD with momentum."""

    def __init__(self, rates: Tensor, features: int, classes: int, momentum: float, seed: int) -> None:
        start = 0.01 * torch.randn(features, classes, generator=torch.Generator().manual_seed(seed))
        self.weight = start.to(rates.device).repeat(len(rates), 1, 1)  # (R, D, C)
        self.bias = torch.zeros(len(rates), 1, classes, device=rates.device)
        self.weight_velocity, self.bias_velocity = torch.zeros_like(self.weight), torch.zeros_like(self.bias)
        self.rates, self.momentum = rates[:, None, None], momentum

    def scores(self, features: Tensor) -> Tensor:
        return features @ self.weight + self.bias  # (R, B, C)

    def step(self, features: Tensor, labels: Tensor, counted: Tensor, factor: float) -> None:
        """One step on the mean cross-entropy of the images that are `counted` (R, B), at `factor` times the rate.

        The images are those of all processes, each of which has its share.
        """
        total = distributed.sum_over_processes(counted.sum(1, keepdim=True))
        wrong = self.scores(features).softmax(2) - F.one_hot(labels, self.weight.shape[2])
        wrong *= (counted / total.clamp(min=1))[:, :, None]
        gradient = torch.cat([features.T @ wrong, wrong.sum(1, keepdim=True)], dim=1)  # (R, D + 1, C)
        of_weight, of_bias = distributed.sum_over_processes(gradient).split([features.shape[1], 1], dim=1)
        self.weight_velocity.mul_(self.momentum).add_(of_weight)
        self.bias_velocity.mul_(self.momentum).add_(of_bias)
        self.weight -= factor * self.rates * self.weight_velocity
        self.bias -= factor * self.rates * self.bias_velocity


def linear_evaluation(encoder: nn.Module, data: EvaluationData, recipe: LinearRecipe, seed: int) -> LinearResult:
    """Train on random crops of the training images, judge on the test images.

    With several rates each is trained twice on the same features: without a tenth of the training images, on which
    the rate is chosen, and with all of them, which is what is judged.
    """
    train, several = data.train, len(recipe.rates) > 1
    held = np.zeros(len(train), dtype=bool)
    held[stratified(data.train_labels, VALIDATION, seed)] = several
    rates = torch.tensor(recipe.rates * (2 if several else 1), device=data.device)
    blind = torch.arange(len(rates), device=data.device) >= len(recipe.rates)  # those that skip what is held out
    with frozen(encoder):
        test = data.features(encoder, data.test)
        classifiers = Classifiers(rates, test.shape[1], data.classes, recipe.momentum, seed)
        with distributed.computing_together():  # each process takes its share of every batch through the encoder
            _train(classifiers, encoder, data, recipe, seed, held=torch.from_numpy(held).to(data.device), blind=blind)
        scores = classifiers.scores(test.to(data.device)).float().cpu()[: len(recipe.rates)]
        if not several:
            return LinearResult(_judged(scores[0], data.test_labels, recipe.rates), recipe.rates[0], {})
        places = np.flatnonzero(held)
        own = data.features(encoder, train.subset(places)).to(data.device)
        truth = torch.from_numpy(data.train_labels[places]).to(data.device)
        right = (classifiers.scores(own)[len(recipe.rates) :].argmax(2) == truth).float().mean(1).tolist()
    validation = {rate: 100 * value for rate, value in zip(recipe.rates, right, strict=True)}
    best = max(range(len(recipe.rates)), key=lambda place: (right[place], -recipe.rates[place]))
    return LinearResult(_judged(scores[best], data.test_labels, recipe.rates), recipe.rates[best], validation)


def _train(
    classifiers: Classifiers,
    encoder: nn.Module,
    data: EvaluationData,
    recipe: LinearRecipe,
    seed: int,
    *,
    held: Tensor,
    blind: Tensor,
) -> None:
    """Train all classifiers on the same batches. Those that are `blind` learn nothing from the images `held` out."""
    batches = data.batches(data.train, recipe.batch_size, seed)
    for epoch in range(recipe.epochs):
        factor = recipe.factor(epoch)
        for step, batch in enumerate(batches.epoch(epoch)):
            assert batch.labels is not None
            counted = ~(blind[:, None] & held[batch.indices])
            classifiers.step(encoder(batch.views[0]).float(), batch.labels, counted, factor)
            if step % 10 == 0:
                done = epoch * batches.steps_per_epoch + step
                data.progress("linear classifier, steps", done, recipe.epochs * batches.steps_per_epoch)
    total = recipe.epochs * batches.steps_per_epoch
    data.progress("linear classifier, steps", total, total)


def _judged(scores: Tensor, truth: np.ndarray, rates: tuple[float, ...]) -> Accuracy:
    if not bool(torch.isfinite(scores).all()):
        raise UserError(f"the linear classifier diverged at rate {max(rates):g}; give lower --rates, such as 3,0.3")
    return measure_accuracy(scores, truth)
