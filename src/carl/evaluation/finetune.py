"""Fine-tuning of the whole encoder on all labels or a part of them.

The paper says 50 epochs and nothing more; this recipe, `simclr-bn`, fills in the rest from others' work.
"""

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
from carl.evaluation.evaluation_data import Material
from carl.evaluation.logistic import stratified
from carl.evaluation.metrics import Accuracy, measure_accuracy
from carl.models.batch_norm import share_batch_norm
from carl.optim import cosine, parameter_groups, set_rate


@dataclass(frozen=True)
class FinetuneRecipe:
    """SimCLR's fine-tuning (Chen et al. 2020, B.5), with features normalised before the linear layer."""

    name: str = "simclr-bn"
    # Normalised as in MAE's linear probe (He et al. 2022, A.1): one rate then fits encoders of any feature size.
    head: str = "batch norm without parameters, then a linear layer that starts at zero"
    epochs: int = 50  # paper, section 5
    batch_size: int = 256  # paper, appendix A; fewer images are one batch
    rate: float = 0.05  # at batch 256, in proportion to the batch; encoder and head alike (SimCLR B.5)
    schedule: str = "cosine to 0"  # SimCLR B.5 has a constant rate for fewer epochs
    momentum: float = 0.9  # Nesterov's (SimCLR B.5)
    weight_decay: float = 0.0  # SimCLR B.5
    augmentation: str = "random crop and flip"  # SimCLR B.5
    batch_norm: str = "trained, with the statistics of each batch"  # SimCLR B.5


@dataclass(frozen=True)
class FinetuneResult:
    accuracy: Accuracy  # on the test images after the last epoch
    rows: np.ndarray  # places in the data's training split of the images whose labels were used


def finetune(
    encoder: nn.Module, material: Material, recipe: FinetuneRecipe, fraction: float, seed: int
) -> FinetuneResult:
    """Train a copy of the encoder, with a linear layer on it, on a stratified part of the labels."""
    places = np.arange(len(material.train)) if fraction == 1 else stratified(material.train_labels, fraction, seed)
    part = material.train if fraction == 1 else material.train.subset(places)
    assert part.labels is not None
    if len(np.unique(part.labels)) < 2:
        raise UserError(f"--fraction {fraction:g} leaves {len(part)} labels of one class; use a larger part")
    torch.manual_seed(seed)  # for dropout, where the encoder has it
    head = classifier(material.features(encoder, part), material.classes)
    model = nn.Sequential(copy.deepcopy(encoder), head.to(material.device))
    with distributed.apart(False):  # each process takes its share of every batch
        if distributed.world_size() > 1:
            share_batch_norm(model, material.device)
        _train(model, material.batches(part, recipe.batch_size, seed, smallest=2), recipe, material)
    distributed.copy_from_main(model)  # the same in every process, up to what a GPU adds in another order
    scores = material.features(model, material.test)
    if not bool(torch.isfinite(scores).all()):
        raise UserError(f"fine-tuning at rate {recipe.rate:g} diverged; the encoder may be damaged, look at its kNN")
    return FinetuneResult(measure_accuracy(scores, material.test_labels), material.train_rows[places])


def classifier(features: Tensor, classes: int) -> nn.Module:
    """A linear layer at zero over normalised features, which begins with the statistics of these."""
    norm, linear = nn.BatchNorm1d(features.shape[1], affine=False), nn.Linear(features.shape[1], classes)
    variance, mean = torch.var_mean(features, dim=0, correction=0)
    norm.load_state_dict({**norm.state_dict(), "running_mean": mean, "running_var": variance})
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(norm, linear)


def _train(model: nn.Module, batches: ShuffledBatches, recipe: FinetuneRecipe, material: Material) -> None:
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
                material.progress("fine-tuning, steps", done, total)
