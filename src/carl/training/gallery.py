"""gallery.npz: everything that the report draws and torch had to compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from carl import files
from carl.assembly import random_encoder
from carl.config import Config
from carl.data.images import Dataset
from carl.data.views import Views
from carl.evaluation.features import extract_features, frozen, map_images
from carl.methods import DataFacts, Method
from carl.runs import RunDirectory

SAMPLE = 5000  # images in the gallery
THUMBNAIL = 48  # largest side of a thumbnail in pixels
NEIGHBOURS = 8
VIEW_ROWS, VIEW_COLUMNS = 6, 8


def write_gallery(
    run: RunDirectory,
    config: Config,
    method: Method,
    dataset: Dataset,
    facts: DataFacts,
    views: Views,
    device: torch.device,
) -> None:
    """Embeddings, assignments, thumbnails and neighbours of a fixed sample of the training images."""
    split = dataset.pretraining
    rows = np.sort(np.random.default_rng(0).permutation(len(split))[:SAMPLE])
    features = extract_features(method.encoder, split, dataset.statistics, facts.image_size, device, rows)
    untrained = random_encoder(config, facts, device)
    random_features = extract_features(untrained, split, dataset.statistics, facts.image_size, device, rows)
    arrays: dict[str, Any] = {
        "rows": rows,
        "embeddings": features.half().numpy(),
        "positions": plane(features).numpy(),
        "neighbours": nearest(features).numpy(),
        "random_neighbours": nearest(random_features).numpy(),
        "thumbnails": thumbnails(split.images.gather(rows)),
        "views": view_grid(views, split.images.gather(rows[:VIEW_ROWS]), rows[:VIEW_ROWS]),
    }
    if split.labels is not None:
        arrays["labels"] = split.labels[rows]
        arrays["class_names"] = np.array(dataset.class_names, dtype=np.str_)
    if split.names is not None:
        arrays["names"] = np.array([split.names[row] for row in rows], dtype=np.str_)
    if method.prototype_vectors() is not None:
        with frozen(method):
            log_p = map_images(_assigner(method), split, dataset.statistics, facts.image_size, device, rows)
        arrays["prototype"] = log_p.argmax(1).numpy().astype(np.int32)
        arrays["probability"] = log_p.max(1).values.exp().numpy()
        arrays["entropy"] = -(log_p.exp() * log_p).sum(1).numpy()
        arrays["prototypes"] = np.int64(log_p.shape[1])
    with files.atomic_writer(run.gallery_file) as file:
        np.savez_compressed(file, **arrays)


def _assigner(method: Method) -> Callable[[Tensor], Tensor]:
    def assign(images: Tensor) -> Tensor:
        log_p = method.log_assignments(images)
        assert log_p is not None
        return log_p

    return assign


def plane(features: Tensor) -> Tensor:
    """The features on their first two principal components: (N, 2)."""
    centred = features - features.mean(0)
    directions: Tensor = torch.linalg.svd(centred.double().T @ centred.double()).Vh
    return (centred.double() @ directions[:2].T).float()


def nearest(features: Tensor, count: int = NEIGHBOURS) -> Tensor:
    """For each image the places of those most similar by cosine, itself left out: (N, count)."""
    unit = F.normalize(features, dim=1)
    count = min(count, len(unit) - 1)
    places = []
    for start in range(0, len(unit), 1024):
        similarity = unit[start : start + 1024] @ unit.T
        itself = torch.arange(start, start + len(similarity))
        similarity[torch.arange(len(similarity)), itself] = -2
        places.append(similarity.topk(count, dim=1).indices.int())
    return torch.cat(places)


def thumbnails(images: np.ndarray) -> np.ndarray:
    """RGB copies (N, h, w, 3) uint8 of at most THUMBNAIL px a side; more than three channels show the first three."""
    colours = images[..., :3] if images.shape[-1] >= 3 else np.repeat(images[..., :1], 3, axis=-1)
    height, width = images.shape[1:3]
    if max(height, width) <= THUMBNAIL:
        return np.ascontiguousarray(colours)
    size = [max(1, round(side * THUMBNAIL / max(height, width))) for side in (height, width)]
    parts = []
    for start in range(0, len(colours), 256):
        planar = torch.from_numpy(np.ascontiguousarray(colours[start : start + 256])).permute(0, 3, 1, 2).float()
        small = F.interpolate(planar, size=size, mode="bilinear", antialias=True)
        parts.append(small.round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy())
    return np.concatenate(parts)


def view_grid(views: Views, images: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Views as the run trains on them, undone to pixels: (images, columns, h, w, 3) uint8."""
    indices, pixels = torch.from_numpy(rows), torch.from_numpy(images)
    mean, std = torch.tensor(views.mean).view(-1, 1, 1), torch.tensor(views.std).view(-1, 1, 1)
    columns: list[np.ndarray] = []
    epoch = 0
    while len(columns) < VIEW_COLUMNS:
        for view in views(pixels, indices, epoch):
            if view.shape[-1] == views.recipes[0].size:
                shown = ((view * std + mean).clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1)
                columns.append(thumbnails(shown.numpy()))
        epoch += 1
    return np.stack(columns[:VIEW_COLUMNS], axis=1)
