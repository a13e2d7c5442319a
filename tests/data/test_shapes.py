"""The data set is what it claims: reproducible, balanced, hard to read linearly, learnable with labels."""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
from numpy.typing import NDArray
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn import functional

from carl.data.sources.shapes import CLASS_NAMES, SIZE, draw_figures, make_shapes
from carl.models.tiny_maps import adapt_to_tiny_maps

Labelled = tuple[NDArray[np.uint8], NDArray[np.int64]]


@pytest.fixture(scope="module")
def train() -> Labelled:
    return make_shapes(10_000, seed=0)


@pytest.fixture(scope="module")
def test() -> Labelled:
    return make_shapes(2_000, seed=1)


def test_images_and_labels_have_the_promised_types_and_shapes():
    images, labels = make_shapes(37, seed=3)
    assert (images.shape, images.dtype) == ((37, SIZE, SIZE, 3), np.uint8)
    assert (labels.shape, labels.dtype) == ((37,), np.int64)


def test_ten_distinct_class_names():
    assert len(set(CLASS_NAMES)) == len(CLASS_NAMES) == 10


def test_the_same_seed_gives_the_same_data():
    for first, second in zip(make_shapes(300, seed=5), make_shapes(300, seed=5), strict=True):
        np.testing.assert_array_equal(first, second)


def test_another_seed_gives_other_images_and_another_order_of_labels():
    (images, labels), (other_images, other_labels) = make_shapes(300, seed=5), make_shapes(300, seed=6)
    assert (images != other_images).any(axis=(1, 2, 3)).all()
    assert (labels != other_labels).any()


@pytest.mark.parametrize("count", [1, 249, 250, 251, 600])
def test_a_smaller_count_is_a_prefix_of_a_larger(count: int):
    images, labels = make_shapes(count, seed=2)
    more_images, more_labels = make_shapes(760, seed=2)
    np.testing.assert_array_equal(images, more_images[:count])
    np.testing.assert_array_equal(labels, more_labels[:count])


def test_no_image_repeats_within_or_across_the_splits(train: Labelled, test: Labelled):
    everything = np.concatenate([train[0], test[0]]).reshape(12_000, -1)
    assert len(np.unique(everything, axis=0)) == 12_000


@pytest.mark.parametrize("count", [10, 255, 1003])
def test_classes_are_balanced_to_within_one(count: int):
    frequencies = np.bincount(make_shapes(count, seed=4)[1], minlength=10)
    assert frequencies.max() - frequencies.min() <= 1


def test_every_ten_labels_come_in_their_own_order():
    labels = make_shapes(250, seed=4)[1]
    assert len({tuple(ten) for ten in labels.reshape(-1, 10)}) > 20


@pytest.mark.parametrize(("count", "seed", "named"), [(0, 0, "count=0"), (1, -1, "seed=-1")])
def test_impossible_requests_name_the_value(count: int, seed: int, named: str):
    with pytest.raises(ValueError, match=named):
        make_shapes(count, seed)


def test_figures_of_every_class_cover_about_the_same_area():
    labels = np.repeat(np.arange(10), 200)
    covered = draw_figures(np.random.default_rng(0), labels).mean(axis=(1, 2)).reshape(10, 200).mean(axis=1)
    assert covered.max() / covered.min() < 1.1


def linear_accuracy(
    train_inputs: NDArray[np.float32],
    train_labels: NDArray[np.int64],
    test_inputs: NDArray[np.float32],
    test_labels: NDArray[np.int64],
    alpha: float,
) -> float:
    """Closed form, so it cannot fail to converge."""
    probe = make_pipeline(StandardScaler(), RidgeClassifier(alpha=alpha, solver="cholesky"))
    return float(probe.fit(train_inputs, train_labels).score(test_inputs, test_labels))


def colour_statistics(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    pixels = images.astype(np.float32) / 255
    return np.concatenate([pixels.mean(axis=(1, 2)), pixels.std(axis=(1, 2))], axis=1)  # (N, 6)


def test_mean_and_spread_of_colour_do_not_give_the_class_away(train: Labelled, test: Labelled):
    train_colours, test_colours = colour_statistics(train[0]), colour_statistics(test[0])
    assert linear_accuracy(train_colours, train[1], test_colours, test[1], alpha=1.0) < 0.18


@pytest.mark.parametrize("alpha", [1e2, 1e4])
def test_a_linear_reader_of_pixels_stays_under_35_percent(train: Labelled, test: Labelled, alpha: float):
    flat_train, flat_test = (part[0].reshape(len(part[0]), -1).astype(np.float32) for part in (train, test))
    assert linear_accuracy(flat_train, train[1], flat_test, test[1], alpha) < 0.35


def as_tensor(images: NDArray[np.uint8]) -> Tensor:
    return (torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25


def trained_encoder(images: Tensor, labels: Tensor, epochs: int, batch_size: int, peak: float) -> nn.Module:
    """ResNet-18 with the ImageNet stem; SGD, one cosine cycle; batches turned, flipped and inverted."""
    torch.manual_seed(0)
    plain = timm.create_model("resnet18", num_classes=len(CLASS_NAMES), zero_init_last=False)
    model = adapt_to_tiny_maps(plain)  # the same model, in less than half the time
    optimizer = torch.optim.SGD(model.parameters(), peak, momentum=0.9, weight_decay=5e-4, nesterov=True)
    steps = epochs * (len(images) // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, steps, pct_start=0.15)
    for _ in range(epochs):
        order = torch.randperm(len(images))
        for chosen in order[: len(images) // batch_size * batch_size].split(batch_size):
            batch = images[chosen].rot90(int(torch.randint(4, ())), (2, 3))
            batch = batch.flip(3) if torch.rand(()) < 0.5 else batch
            batch = -batch if torch.rand(()) < 0.5 else batch
            loss = functional.cross_entropy(model(batch), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


@pytest.mark.slow
def test_a_supervised_encoder_passes_90_percent(train: Labelled, test: Labelled):
    images, labels = as_tensor(train[0]), torch.from_numpy(train[1])
    model = trained_encoder(images, labels, epochs=5, batch_size=50, peak=0.03)
    with torch.no_grad():
        predicted = torch.cat([model(part).argmax(dim=1) for part in as_tensor(test[0]).split(500)])
    assert (predicted.numpy() == test[1]).mean() > 0.9
