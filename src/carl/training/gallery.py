"""gallery.npz: everything in the report that torch had to compute.

Arrays, N images of the sample and K prototypes (or k-means clusters, for methods without prototypes):
`embeddings` (N, D), `positions` (N, 2), `neighbours`, `similarities` and `random_neighbours` (N, 8), `thumbnails`,
`views` of the images at `view_places`, `labels`, `class_names`, `names`; `grouping` says what the K groups are,
`group` and `confidence` (N,) which one an image chose and how surely; of each group `group_mean`, `group_best`,
`group_twin` and `group_cosine` (K,) are its mean confidence, the images that want it most, and the group nearest to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from carl import files
from carl.clustering import kmeans
from carl.config import Config
from carl.data.batches.build import make_views
from carl.data.dataset import Dataset, Split
from carl.data.facts import DataFacts
from carl.distributed import computing_alone
from carl.evaluation.features import extract_features, frozen, map_images
from carl.methods import Method
from carl.methods.build import random_encoder
from carl.records.gallery import GALLERY_FORMAT
from carl.records.run_directory import RunDirectory
from carl.views.views import Views

SAMPLE = 10_000  # images in the gallery; a page with this many stays under 15 MB
THUMBNAIL = 48  # largest side of a thumbnail in pixels when there are SAMPLE of them; fewer may be larger
LARGEST_THUMBNAIL = 96
PART = 256  # images at full size in memory at once
NEIGHBOURS = 8
BEST = 8  # images kept for a group that no image chooses first
VIEW_ROWS, VIEW_COLUMNS = 6, 8
CLUSTERS = (
    10,
    300,
)  # fewest and most clusters of k-means; between them ten per class, as CARL's paper chooses K (section 4.2)


def write_gallery(
    run: RunDirectory,
    config: Config,
    method: Method,
    dataset: Dataset,
    facts: DataFacts,
    views: Views,
    device: torch.device,
) -> None:
    """Embeddings, groups, thumbnails and neighbours of a fixed sample of the training images."""
    split = dataset.pretraining
    rows = np.sort(np.random.default_rng(0).permutation(len(split))[:SAMPLE])
    features = extract_features(method.encoder, split, dataset.statistics, facts.image_size, device, rows)
    untrained = random_encoder(config, facts, device)
    random_features = extract_features(untrained, split, dataset.statistics, facts.image_size, device, rows)
    neighbours, similarities = nearest(features)
    view_places = np.unique(np.linspace(0, len(rows) - 1, min(VIEW_ROWS, len(rows))).round().astype(np.int64))
    view_rows = rows[view_places]
    arrays: dict[str, Any] = {
        "format": np.int64(GALLERY_FORMAT),
        "total_images": np.int64(len(split)),
        "rows": rows,
        "embeddings": features.half().numpy(),
        "positions": plane(features).numpy(),
        "neighbours": neighbours.numpy(),
        "similarities": similarities.numpy(),
        "random_neighbours": nearest(random_features)[0].numpy(),
        "thumbnails": np.concatenate([thumbnails(split.images.gather(part), len(rows)) for part in _parts(rows)]),
        "views": view_grid(views, split, view_rows),
        "view_places": view_places,
    }
    if split.labelled and split.labels is not None:
        arrays["labels"] = split.labels[rows]
        arrays["class_names"] = np.array(dataset.class_names, dtype=np.str_)
    if split.names is not None:
        arrays["names"] = np.array([split.names[row] for row in rows], dtype=np.str_)
    vectors = method.prototype_vectors()
    if vectors is not None:
        grouping = Grouping(vectors)
        with frozen(method):
            map_images(_assigner(method, grouping), split, dataset.statistics, facts.image_size, device, rows)
        arrays |= {"grouping": np.str_("prototypes"), **grouping.arrays()}
    else:
        arrays |= {"grouping": np.str_("k-means"), **clusters(features, facts.classes)}
    with files.atomic_writer(run.gallery_file) as file:
        np.savez_compressed(file, **arrays)


def _assigner(method: Method, grouping: Grouping) -> Callable[[Tensor], Tensor]:
    def assign(images: Tensor) -> Tensor:
        log_p = method.log_assignments(images)
        assert log_p is not None
        return grouping.add(log_p.float().cpu().exp())

    return assign


class Grouping:
    """Which group each image chooses, and figures of the groups with these vectors (K, D).

    Scores come a part of the images at a time: of 50,000 groups, all at once would take gigabytes.
    """

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors.detach().float().cpu()
        groups = len(self.vectors)
        self.chosen: list[Tensor] = []
        self.confidence: list[Tensor] = []
        self.total = torch.zeros(groups, dtype=torch.float64)
        self.best, self.best_places = torch.empty(0, groups), torch.empty(0, groups, dtype=torch.int64)

    def add(self, scores: Tensor) -> Tensor:
        """Add the scores (B, K) of the next images. Returns their confidence (B,)."""
        before = sum(map(len, self.chosen))
        confidence, chosen = scores.max(1)
        self.confidence.append(confidence)
        self.chosen.append(chosen)
        self.total += scores.sum(0, dtype=torch.float64)
        places = torch.arange(before, before + len(scores))[:, None].expand_as(scores)
        best, places = torch.cat([self.best, scores]), torch.cat([self.best_places, places])
        self.best, top = best.topk(min(BEST, len(best)), dim=0)
        self.best_places = places.gather(0, top)
        return confidence

    def arrays(self) -> dict[str, np.ndarray]:
        chosen = torch.cat(self.chosen)
        alone = torch.zeros(1, 1, dtype=torch.int32), torch.full((1, 1), -2.0)
        twin, cosine = nearest(self.vectors, 1) if len(self.vectors) > 1 else alone
        return {
            "group": chosen.int().numpy(),
            "confidence": torch.cat(self.confidence).numpy(),
            "group_mean": (self.total / len(chosen)).float().numpy(),
            "group_best": self.best_places.T.int().numpy(),
            "group_twin": twin[:, 0].numpy(),
            "group_cosine": cosine[:, 0].numpy(),
        }


def clusters(features: Tensor, classes: int) -> dict[str, np.ndarray]:
    """Groups for methods without prototypes: k-means of the unit features, an image's score being its cosine."""
    unit = F.normalize(features, dim=1)
    fewest, most = CLUSTERS
    wanted = min(max(10 * classes, fewest), most) if classes else 100
    with computing_alone():  # only the main process makes a gallery
        found = kmeans(unit, min(wanted, max(1, len(unit) // 2)), seed=0)
    grouping = Grouping(found.centroids - unit.mean(0))
    grouping.add(unit @ F.normalize(found.centroids, dim=1).T)
    return grouping.arrays()


def plane(features: Tensor) -> Tensor:
    """The unit features on their first two principal components: (N, 2)."""
    unit = F.normalize(features, dim=1)
    centred = unit - unit.mean(0)
    directions: Tensor = torch.linalg.svd(centred.double().T @ centred.double()).Vh
    return (centred.double() @ directions[:2].T).float()


def nearest(features: Tensor, count: int = NEIGHBOURS) -> tuple[Tensor, Tensor]:
    """For each image the positions of the most similar others, and their cosines: both (N, count)."""
    unit = F.normalize(features, dim=1)
    count = min(count, len(unit) - 1)
    places, cosines = [], []
    for start in range(0, len(unit), 1024):
        similarity = unit[start : start + 1024] @ unit.T
        itself = torch.arange(start, start + len(similarity))
        similarity[torch.arange(len(similarity)), itself] = -2
        top = similarity.topk(count, dim=1)
        places.append(top.indices.int())
        cosines.append(top.values)
    return torch.cat(places), torch.cat(cosines)


def _parts(rows: np.ndarray) -> list[np.ndarray]:
    """A few rows at a time: all images at full size may not fit in memory."""
    return np.array_split(rows, -(-len(rows) // PART))


def thumbnails(images: np.ndarray, count: int) -> np.ndarray:
    """RGB copies (N, h, w, 3) uint8, small enough for `count` of them. Only the first three channels are shown."""
    colours = images[..., :3] if images.shape[-1] >= 3 else np.repeat(images[..., :1], 3, axis=-1)
    height, width = images.shape[1:3]
    largest = min(LARGEST_THUMBNAIL, round(THUMBNAIL * math.sqrt(SAMPLE / count)))
    if max(height, width) <= largest:
        return np.ascontiguousarray(colours)
    return resized(colours, [max(1, round(side * largest / max(height, width))) for side in (height, width)])


def resized(colours: np.ndarray, size: list[int]) -> np.ndarray:
    """Images (N, H, W, 3) uint8 at another size."""
    planar = torch.from_numpy(np.ascontiguousarray(colours)).permute(0, 3, 1, 2).float()
    small = F.interpolate(planar, size=size, mode="bilinear", antialias=True)
    return small.round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()


def view_grid(views: Views, split: Split, rows: np.ndarray) -> np.ndarray:
    """Views as the run trains on them, undone to pixels: (images, columns, h, w, 3) uint8; small crops enlarged."""
    mean, std = torch.tensor(views.mean).view(-1, 1, 1), torch.tensor(views.std).view(-1, 1, 1)
    columns: list[np.ndarray] = []
    epoch = 0
    while len(columns) < VIEW_COLUMNS:
        for view in make_views(split, views, rows, epoch, torch.device("cpu")):
            shown = ((view * std + mean).clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1)
            small = thumbnails(shown.numpy(), len(rows) * VIEW_COLUMNS)
            same = not columns or small.shape == columns[0].shape
            columns.append(small if same else resized(small, list(columns[0].shape[1:3])))
        epoch += 1
    return np.stack(columns[:VIEW_COLUMNS], axis=1)
