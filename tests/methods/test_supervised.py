"""Training with labels: what it refuses, and which images it takes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from carl.data.configured import labelled_only
from carl.data.dataset import UNLABELLED, Dataset, PackedImages, Split, Statistics
from carl.errors import UserError
from carl.methods import METHODS
from tests.conftest import SMALL, Run
from tests.methods.examples import FACTS, PROGRESS, make, make_batch, settings

WITHOUT_PROTOTYPES = [word for word in SMALL if word not in ("--prototypes", "10")]


def test_the_loss_is_the_cross_entropy_of_the_labels():
    method, batch = make("supervised"), make_batch("supervised")
    loss, metrics = method(batch, PROGRESS)
    assert batch.labels is not None
    scores = method.head(method.encoder(batch.views[0]))
    torch.testing.assert_close(loss, F.cross_entropy(scores, batch.labels))
    assert metrics["train_accuracy"] == (scores.argmax(1) == batch.labels).float().mean()


def test_data_without_labels_are_refused_in_one_line_before_anything_is_written(tmp_path: Path, carl: Run):
    np.save(tmp_path / "plain.npy", np.zeros((48, 24, 24, 3), np.uint8))
    done = carl("pretrain", "plain.npy", *WITHOUT_PROTOTYPES, "--method", "supervised", "--out", "run")
    assert done.returncode == 2
    assert "has no labels, and supervised needs them; choose another --method" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_single_class_is_refused():
    with pytest.raises(UserError, match="has 1 classes; supervised training needs at least 2"):
        METHODS["supervised"](settings("supervised"), dataclasses.replace(FACTS, classes=1))


def dataset(labels: list[int], **others: Split) -> Dataset:
    images = PackedImages(np.arange(len(labels), dtype=np.uint8).reshape(-1, 1, 1, 1))
    splits = {"train": Split(images, np.array(labels)), **others}
    return Dataset("mine", splits, Statistics((0.5,), (0.2,)), "x", class_names=("a", "b"))


def test_images_without_a_label_are_left_out_and_the_rest_keep_theirs():
    found = labelled_only(dataset([0, UNLABELLED, 1, UNLABELLED, 1]), "supervised").pretraining
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1, 1]
    assert found.images.pixels.ravel().tolist() == [0, 2, 4]


def test_on_data_like_stl10_the_labelled_images_are_what_is_trained_on():
    apart = Split(PackedImages(np.zeros((7, 1, 1, 1), np.uint8)))
    whole = dataset([0, 1, 1], unlabeled=apart)
    assert len(whole.pretraining) == 7
    assert len(labelled_only(whole, "supervised").pretraining) == 3
