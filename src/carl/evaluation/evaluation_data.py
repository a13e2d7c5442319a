"""What every protocol works on: labelled training and test images, and how the encoder wants to see them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from carl import distributed
from carl.data.batches.build import batches_for
from carl.data.batches.shuffled import ShuffledBatches
from carl.data.dataset import UNLABELLED, Dataset, Split, Statistics
from carl.errors import UserError
from carl.evaluation.features import frozen, map_images_together
from carl.framing import Framing
from carl.terminal import Progress
from carl.views.recipes import pipeline
from carl.views.views import Views

MOST_BYTES = 4 * 2**30  # of images to compare, which takes seconds


@dataclass(frozen=True, eq=False)
class EvaluationData:
    """Labelled images. The test images are used for judging only."""

    train: Split  # labelled images alone
    test: Split
    train_rows: np.ndarray  # where the images of `train` are in the data's own training split
    statistics: Statistics  # the encoder's own normalisation
    image_size: int
    crop_min: float  # smallest area of a random crop, as a fraction of the image
    classes: int
    device: torch.device
    progress: Progress
    centre: float = 1.0  # fraction of each side that is seen of an image that is not cropped at random
    framing: Framing | None = None  # how such an image is resized for weights that want it done in their own way
    kept: dict[int, tuple[nn.Module, Tensor]] = field(default_factory=dict)  # features, for the next seed

    @property
    def train_labels(self) -> np.ndarray:
        assert self.train.labels is not None
        return self.train.labels

    @property
    def test_labels(self) -> np.ndarray:
        assert self.test.labels is not None
        return self.test.labels

    @property
    def feature_device(self) -> torch.device:
        """The device for cached features. Not MPS, which has no float64 and finds few neighbours at once."""
        return self.device if self.device.type == "cuda" else torch.device("cpu")

    def features(self, encoder: nn.Module, split: Split) -> Tensor:
        """Pooled features of images by the frozen encoder: (N, D) on the CPU."""
        with frozen(encoder):
            found = self.mapped(encoder, split)
        return found.clone()  # made in inference mode, and not every use is

    def mapped(self, function: Callable[[Tensor], Tensor], split: Split) -> Tensor:
        """`function` of every image, as the encoder wants to see it."""
        return map_images_together(
            function,
            split,
            self.statistics,
            self.image_size,
            self.device,
            progress=self.progress,
            centre=self.centre,
            framing=self.framing,
        )

    def cached_features(self, encoder: nn.Module, split: Split) -> Tensor:
        """The same, extracted once for all seeds; for an encoder that does not change."""
        known = self.kept.get(id(split))
        if known is None or known[0] is not encoder:
            self.kept[id(split)] = known = (encoder, self.features(encoder, split))
        return known[1]

    def batches(self, split: Split, batch_size: int, seed: int, smallest: int = 1) -> ShuffledBatches:
        """Shuffled batches of random crops and flips, this process's share; every image in each epoch.

        Where batch norm is trained, the `smallest` batch is of two: one image that is left over stays out.
        """
        (recipe,) = pipeline("linear", self.image_size)
        views = Views(
            [replace(recipe, crop_area=(self.crop_min, 1.0))], self.statistics.mean, self.statistics.std, seed
        )
        return batches_for(split)(
            split,
            views,
            min(batch_size, len(split)),
            seed=seed,
            device=self.device,
            drop_last=False,
            rank=distributed.rank(),
            ranks=distributed.world_size(),
            equal_shares=False,
            smallest=smallest,
        )


def labelled_data(
    dataset: Dataset,
    *,
    source: str,
    statistics: Statistics,
    image_size: int,
    crop_min: float,
    device: torch.device,
    progress: Progress,
    centre: float = 1.0,
    framing: Framing | None = None,
) -> EvaluationData:
    """The labelled images of a data set, or a UserError that says what is missing."""
    train, test = dataset.train, dataset.test
    if not train.labelled or test is None or not test.labelled:
        what = "labels" if not train.labelled else "test split with labels"
        own = "train with --set data.held_out=N to set some of these aside, or " if train.labelled else ""
        raise UserError(f"{source} has no {what}, which this protocol needs; {own}evaluate on other data with --data")
    if train.images.channels != len(statistics.mean):
        raise UserError(
            f"{source} has {train.images.channels} channels and the encoder was trained on {len(statistics.mean)}; "
            "evaluate on images like those it was trained on"
        )
    (train, rows), (test, _) = labelled(train), labelled(test)
    assert train.labels is not None
    assert test.labels is not None
    classes = max(len(dataset.class_names), int(train.labels.max()) + 1, int(test.labels.max()) + 1)
    if len(np.unique(train.labels)) < 2:
        raise UserError(f"{source} has a single class, so every encoder is right; evaluate on other data with --data")
    return EvaluationData(
        train=train,
        test=test,
        train_rows=rows,
        statistics=statistics,
        image_size=image_size,
        crop_min=crop_min,
        classes=classes,
        device=device,
        progress=progress,
        centre=centre,
        framing=framing,
    )


def labelled(split: Split) -> tuple[Split, np.ndarray]:
    """The images of a split that have labels, and their places in it."""
    assert split.labels is not None
    rows = np.flatnonzero(split.labels != UNLABELLED)
    return (split, rows) if len(rows) == len(split) else (split.subset(rows), rows)


def count_shared(train: Split, test: Split) -> int | None:
    """Test images that are, pixel by pixel, training images too; None where the data are too large to look."""
    pixels = (train.images.pixels, test.images.pixels)
    if sum(p.nbytes for p in pixels) > MOST_BYTES:
        return None
    known = {hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in pixels[0]}
    return sum(hashlib.blake2b(image.tobytes(), digest_size=16).digest() in known for image in pixels[1])
