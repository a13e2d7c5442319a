"""The linear protocol and fine-tuning: the encoder as it must be, and SGD as torch does it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from carl.data.dataset import PackedImages, Split, Statistics
from carl.errors import UserError
from carl.evaluation.evaluation_data import EvaluationData
from carl.evaluation.fine_tuning import finetune
from carl.evaluation.linear_classifiers import Classifiers, linear_evaluation
from carl.evaluation.protocols.finetune import FinetuneRecipe
from carl.evaluation.protocols.linear import LinearRecipe
from carl.evaluation.target import unchanged
from carl.models.weights import weights_hash


class Colours(nn.Module):
    """Mean colour through batch norm and dropout: wrong in train mode, and its statistics move there."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.scale = nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Parameter(torch.ones(3))
        self.modes: list[bool] = []

    def forward(self, images: Tensor) -> Tensor:
        self.modes.append(self.training)
        features: Tensor = self.drop(self.norm(images.mean((2, 3)) * self.scale))
        return features


def coloured(count: int = 120, noise: float = 20.0) -> EvaluationData:
    """Three classes that differ in colour."""

    def split(count: int, seed: int) -> Split:
        generator = np.random.default_rng(seed)
        labels = np.arange(count) % 3
        colours = 90 + 70 * np.eye(3)[labels][:, None, None, :]
        pixels = np.clip(colours + noise * generator.normal(size=(count, 1, 1, 3)) + np.zeros((1, 8, 8, 1)), 0, 255)
        return Split(PackedImages(pixels.astype(np.uint8)), labels)

    return EvaluationData(
        split(count, 0), split(60, 1), np.arange(count), Statistics((0.5,) * 3, (0.2,) * 3), 8, 0.5, 3,
        torch.device("cpu"), lambda what, done, total: None,
    )  # fmt: skip


def test_steps_are_those_of_torchs_sgd():
    generator = torch.Generator().manual_seed(0)
    batches = [
        (torch.randn(16, 6, generator=generator), torch.randint(0, 4, (16,), generator=generator)) for _ in range(5)
    ]
    ours = Classifiers(torch.tensor([0.5, 3.0]), 6, 4, momentum=0.9, seed=1)
    for place, rate in enumerate((0.5, 3.0)):
        layer = nn.Linear(6, 4)
        start = Classifiers(torch.tensor([rate]), 6, 4, momentum=0.9, seed=1)
        layer.load_state_dict({"weight": start.weight[0].T, "bias": torch.zeros(4)})
        optimizer = torch.optim.SGD(layer.parameters(), lr=rate, momentum=0.9)
        for step, (features, labels) in enumerate(batches):
            optimizer.param_groups[0]["lr"] = rate * (1.0 if step < 3 else 0.1)
            optimizer.zero_grad()
            nn.functional.cross_entropy(layer(features), labels).backward()
            optimizer.step()
            if place == 0:
                ours.step(features, labels, torch.ones(2, 16, dtype=torch.bool), 1.0 if step < 3 else 0.1)
        assert torch.allclose(ours.weight[place].T, layer.weight, atol=1e-5)
        assert torch.allclose(ours.bias[place, 0], layer.bias, atol=1e-5)


def test_images_that_are_not_counted_change_nothing():
    features, labels = torch.randn(8, 5), torch.arange(8) % 3
    whole, part = (Classifiers(torch.tensor([1.0]), 5, 3, momentum=0.9, seed=0) for _ in range(2))
    counted = torch.arange(8)[None] < 6
    whole.step(features, labels, counted, 1.0)
    part.step(features[:6], labels[:6], torch.ones(1, 6, dtype=torch.bool), 1.0)
    assert torch.allclose(whole.weight, part.weight, atol=1e-6)


def test_the_rate_falls_tenfold_at_60_and_80_of_100_epochs():
    recipe = LinearRecipe()
    assert [recipe.factor(epoch) for epoch in (0, 59, 60, 79, 80, 99)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    assert (recipe.epochs, recipe.rates, recipe.batch_size, recipe.weight_decay) == (100, (30.0,), 256, 0.0)


@pytest.mark.parametrize("rates", [(3.0,), (1e-6, 3.0)])
def test_the_encoder_is_frozen_and_in_eval_mode_and_its_statistics_stay(rates: tuple[float, ...]):
    encoder = Colours().train()
    before = weights_hash(encoder)
    found = linear_evaluation(encoder, coloured(), LinearRecipe(epochs=8, rates=rates), seed=0)
    assert not any(encoder.modes)
    assert encoder.training
    assert weights_hash(encoder) == before
    assert found.accuracy.top1 > 90
    assert found.rate == 3.0
    assert len(found.validation) == (2 if len(rates) > 1 else 0)


def test_the_rate_is_chosen_on_training_images(monkeypatch: pytest.MonkeyPatch):
    usual, other = coloured(), coloured()
    assert other.test.labels is not None
    other.test.labels[:] = 0
    recipe = LinearRecipe(epochs=3, rates=(1e-6, 0.3, 3.0))
    first, second = (linear_evaluation(Colours(), m, recipe, seed=0) for m in (usual, other))
    assert first.validation == second.validation
    assert first.rate == second.rate


def test_same_seed_same_result():
    first, second, third = (
        linear_evaluation(Colours(), coloured(noise=60), LinearRecipe(epochs=2), s) for s in (0, 0, 1)
    )
    assert first == second
    assert first.accuracy != third.accuracy


def test_a_rate_that_diverges_is_said_so():
    with pytest.raises(UserError, match="diverged at rate inf"):
        linear_evaluation(Colours(), coloured(), LinearRecipe(epochs=5, rates=(math.inf,)), seed=0)


def test_fine_tuning_trains_a_copy_on_the_part_asked_for():
    encoder, images = Colours(), coloured(300)
    with unchanged(encoder):
        found = finetune(encoder, images, FinetuneRecipe(epochs=3), 0.1, seed=0)
    assert len(found.rows) == 30
    assert np.bincount(images.train_labels[found.rows]).tolist() == [10, 10, 10]
    assert found.accuracy.top1 > 80
    assert (finetune(encoder, images, FinetuneRecipe(epochs=1), 0.1, seed=1).rows != found.rows).any()


def test_what_changes_an_encoder_is_found_out():
    encoder = Colours().train()
    with pytest.raises(RuntimeError, match="changed the encoder"), unchanged(encoder):
        encoder(torch.rand(4, 3, 8, 8))  # batch norm moves its statistics
