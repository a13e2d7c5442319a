"""Fine-tunes the whole encoder on all or some of the labels, for `finetune` and `semi`."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from carl import distributed
from carl.data.batches.shuffled import ShuffledBatches
from carl.errors import UserError
from carl.evaluation.accuracy import Accuracy, measure_accuracy
from carl.evaluation.evaluation_data import EvaluationData
from carl.evaluation.logistic import stratified
from carl.evaluation.protocols.finetune import FinetuneRecipe
from carl.models.batch_norm import share_batch_norm
from carl.optim import cosine, parameter_groups, set_rate


@dataclass(frozen=True)
class FinetuneResult:
    accuracy: Accuracy  # on the test images after the last epoch
    rows: np.ndarray  # places in the data's training split of the images whose labels were used


def finetune(
    encoder: nn.Module, data: EvaluationData, recipe: FinetuneRecipe, fraction: float, seed: int
) -> FinetuneResult:
    """Train a copy of the encoder, with a linear layer on it, on a stratified part of the labels."""
    places = np.arange(len(data.train)) if fraction == 1 else stratified(data.train_labels, fraction, seed)
    part = data.train if fraction == 1 else data.train.subset(places)
    assert part.labels is not None
    if len(np.unique(part.labels)) < 2:
        raise UserError(f"--fraction {fraction:g} leaves {len(part)} labels of one class; use a larger part")
    torch.manual_seed(seed)  # for dropout, where the encoder has it
    head = classifier(data.features(encoder, part), data.classes)
    model = nn.Sequential(copy.deepcopy(encoder), head.to(data.device))
    with distributed.computing_together():  # each process takes its share of every batch
        if distributed.world_size() > 1:
            share_batch_norm(model, data.device)
        train(model, data.batches(part, recipe.batch_size, seed, smallest=2), recipe, data)
    distributed.copy_from_main(model)  # the same in every process, up to what a GPU adds in another order
    scores = data.features(model, data.test)
    if not bool(torch.isfinite(scores).all()):
        raise UserError(f"fine-tuning at rate {recipe.rate:g} diverged; the encoder may be damaged, look at its kNN")
    return FinetuneResult(measure_accuracy(scores, data.test_labels), data.train_rows[places])


def classifier(features: Tensor, classes: int) -> nn.Module:
    """A linear layer at zero over normalised features, which begins with the statistics of these."""
    norm, linear = nn.BatchNorm1d(features.shape[1], affine=False), nn.Linear(features.shape[1], classes)
    variance, mean = torch.var_mean(features, dim=0, correction=0)
    norm.load_state_dict({**norm.state_dict(), "running_mean": mean, "running_var": variance})
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(norm, linear)


def train(model: nn.Module, batches: ShuffledBatches, recipe: FinetuneRecipe, data: EvaluationData) -> None:
    peak = recipe.rate * batches.batch_size / 256
    groups = parameter_groups(model, recipe.weight_decay)
    optimizer = torch.optim.SGD(groups, lr=peak, momentum=recipe.momentum, nesterov=True)
    total, done = recipe.epochs * batches.steps_per_epoch, 0
    weights = list(model.parameters())
    model.train()
    for epoch in range(recipe.epochs):
        for step, batch in enumerate(batches.epoch(epoch)):
            assert batch.labels is not None
            set_rate(optimizer, cosine(done / total, peak, 0.0))
            loss = F.cross_entropy(model(batch.views[0]), batch.labels, reduction="sum")
            # Gradients are averaged over the processes, so the mean over all images has their number as a factor.
            (loss * distributed.world_size() / batches.images_of_step(step)).backward()
            distributed.average_([weight.grad for weight in weights if weight.grad is not None])
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done % 10 == 0 or done == total:
                data.progress("fine-tuning, steps", done, total)
