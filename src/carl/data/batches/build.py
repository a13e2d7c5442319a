"""Which batches a data set is trained with: the one place that distinguishes packed images, photos and streams."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from carl.config import DataConfig, TrainConfig
from carl.data.batches.base import TrainingBatches, check_batch_size, check_shares
from carl.data.batches.packed import PackedBatches
from carl.data.batches.photos import PhotoBatches
from carl.data.batches.shuffled import ShuffledBatches
from carl.data.batches.stream import StreamBatches, check_lanes, choose_lanes
from carl.data.dataset import Dataset, Split
from carl.errors import UserError
from carl.views.views import Views


def training_batches(
    dataset: Dataset,
    views: Views,
    *,
    train: TrainConfig,
    data: DataConfig,
    device: torch.device,
    rank: int = 0,
    ranks: int = 1,
) -> TrainingBatches:
    """The training batches of this process."""
    if dataset.stream is None:
        split = dataset.pretraining
        return batches_for(split)(
            split,
            views,
            train.batch_size,
            seed=train.seed,
            device=device,
            drop_last=train.drop_last,
            rank=rank,
            ranks=ranks,
        )
    if data.lanes is None:
        raise UserError("data.lanes is not set, and shards are read in lanes; restore config.toml, or start a new run")
    return StreamBatches(
        dataset.stream,
        views,
        train.batch_size,
        seed=train.seed,
        device=device,
        lanes=data.lanes,
        buffer=data.buffer,
        max_bad=data.max_bad,
        rank=rank,
        ranks=ranks,
        whole_size=(dataset.pretraining.images.height, dataset.pretraining.images.width),
    )


def batches_for(split: Split) -> type[ShuffledBatches]:
    """The class of batches for a split: cut from photos if it has them, otherwise packed."""
    return PackedBatches if split.photos is None else PhotoBatches


def make_views(split: Split, views: Views, rows: np.ndarray, epoch: int, device: torch.device) -> list[Tensor]:
    """The views of the images at `rows` that training sees in this epoch, one (B, C, S, S) per view."""
    kind = batches_for(split)
    pixels = [part.to(device) for part in kind.read_pixels(split, views, rows, epoch)]
    return kind.views_of(views, pixels, torch.from_numpy(rows).to(device), epoch)


def settled(data: DataConfig, train: TrainConfig, dataset: Dataset, ranks: int) -> DataConfig:
    """Check that batches are possible, and fill in what stays the same for the whole run.

    For a stream that is the number of its lanes.
    """
    check_batch_size(train.batch_size, dataset.training_images, train.drop_last)
    check_shares(train.batch_size, dataset.training_images, train.drop_last, ranks)
    if dataset.stream is None:
        return data
    if not train.drop_last:
        raise UserError("train.drop_last=false cannot be used with shards; leave it at true")
    if data.lanes is None:
        return data.model_copy(update={"lanes": choose_lanes(train.batch_size, len(dataset.stream), ranks)})
    check_lanes(data.lanes, train.batch_size, ranks)
    return data
