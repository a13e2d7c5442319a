"""The arrays of a gallery that are computed from features and pixels, for a run's own images and for any others."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from carl.clustering import kmeans
from carl.data.decoding.decode import shown_bands
from carl.distributed import computing_alone

SAMPLE = 10_000  # images in the gallery; a page with this many stays under 15 MB
THUMBNAIL = 48  # largest side of a thumbnail in pixels when there are SAMPLE of them; fewer may be larger
LARGEST_THUMBNAIL = 96
NEIGHBOURS = 8
BEST = 8  # images kept for a group that no image chooses first
# Fewest and most clusters of k-means; between them ten per class, as CARL's paper chooses K (section 4.2).
CLUSTERS = (10, 300)


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


def usual_clusters(images: int) -> int:
    """How many groups to make of so many images without labels: a rule of thumb (Mardia et al. 1979)."""
    return round(math.sqrt(images / 2))


def clusters(features: Tensor, classes: int, images: int) -> dict[str, np.ndarray]:
    """Groups for methods without prototypes: k-means of the unit features, an image's score being its cosine.

    `features` are those of a sample of all `images`. There are ten groups per class, as many as CARL's prototypes.
    """
    fewest, most = CLUSTERS if classes else (2, CLUSTERS[1])
    wanted = min(max(10 * classes if classes else usual_clusters(images), fewest), most)
    return clusters_with_centres(features, min(wanted, max(1, len(features) // 2)))[0]


def clusters_with_centres(features: Tensor, count: int) -> tuple[dict[str, np.ndarray], Tensor]:
    """`count` groups by k-means of the unit features, and their unit centres (K, D)."""
    unit = F.normalize(features, dim=1)
    with computing_alone():  # only the main process makes a gallery
        found = kmeans(unit, count, seed=0)
    centres = F.normalize(found.centroids, dim=1)
    grouping = Grouping(found.centroids - unit.mean(0))
    grouping.add(unit @ centres.T)
    return grouping.arrays(), centres


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


def largest_side(count: int) -> int:
    """The largest side of a thumbnail, in pixels, if there are `count` of them."""
    return min(LARGEST_THUMBNAIL, round(THUMBNAIL * math.sqrt(SAMPLE / count)))


def thumbnails(images: np.ndarray, count: int) -> np.ndarray:
    """RGB copies (N, h, w, 3) uint8, small enough for `count` of them. Only the first three channels are shown."""
    colours = shown_bands(images)
    height, width = images.shape[1:3]
    largest = largest_side(count)
    if max(height, width) <= largest:
        return np.ascontiguousarray(colours)
    return resized(colours, [max(1, round(side * largest / max(height, width))) for side in (height, width)])


def resized(colours: np.ndarray, size: list[int]) -> np.ndarray:
    """Images (N, H, W, 3) uint8 at another size."""
    planar = torch.from_numpy(np.ascontiguousarray(colours)).permute(0, 3, 1, 2).float()
    small = F.interpolate(planar, size=size, mode="bilinear", antialias=True)
    return small.round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()
