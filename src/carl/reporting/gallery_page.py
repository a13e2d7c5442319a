"""What the page shows of the images: groups, neighbours, outliers and near-duplicates, as plain data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from carl.records.gallery import Gallery
from carl.records.prototypes import DEAD, NEAR_DUPLICATE
from carl.reporting.projections import PROJECTIONS, map_places

# Two images are near-duplicates if they are alike to the encoder (cosine of whitened embeddings) and coarsely in their
# pixels (correlation at 8 x 8). Ours, by looking: among CIFAR-10's first 4,000 images there are 7 such pairs, all the
# same picture; the cosine alone, of an encoder of 12 epochs, mixes them with pairs that merely look alike.
ALIKE, SAME_PIXELS = 0.75, 0.95
WHITENED = 256  # directions of the whitening; plain cosines of a young encoder are near 1 for all pairs
COARSE = 8  # side at which pixels are compared
OUTLIERS, PAIRS, QUERIES, TOP_CLASSES = 24, 24, 10, 5
MOST_GROUPS = 3000  # in the page; of more the largest
LONGEST_NAME = 200  # characters


def image_data(gallery: Gallery) -> dict[str, Any]:
    """The images themselves, without their pixels: labels and names; the same for all runs on the same images."""
    data: dict[str, Any] = {
        "count": len(gallery["rows"]),
        "total": int(gallery["total_images"]),
        "rows": gallery["rows"].tolist(),
        "pixelated": max(gallery["thumbnails"].shape[1:3]) <= 40,  # a few large pixels are clearer than a blur
        "classes": [],
        "queries": _queries(gallery),
    }
    if "labels" in gallery:
        data["labels"] = gallery["labels"].tolist()
        data["classes"] = _class_names(gallery)
    if "names" in gallery:
        data["names"] = [_short(str(name)) for name in gallery["names"]]
    return data


def compared_data(gallery: Gallery, projection: str) -> dict[str, Any]:
    """What one run made of the images, as far as it is laid beside other runs."""
    data: dict[str, Any] = {
        "projection": PROJECTIONS[projection],
        "places": map_places(gallery, projection).ravel().tolist(),
        "near": gallery["neighbours"].shape[1],
        "neighbours": gallery["neighbours"].ravel().tolist(),
        "nearest": _thousandths(gallery["similarities"][:, :1]).ravel().tolist(),
        "random": gallery["random_neighbours"].ravel().tolist(),
        "same_label": _same_label(gallery),
    }
    if "group" in gallery:
        data["grouping"] = str(gallery["grouping"])
        data["group"] = gallery["group"].tolist()
        data["confidence"] = _thousandths(gallery["confidence"]).tolist()
    return data


def gallery_data(gallery: Gallery, projection: str) -> dict[str, Any]:
    """All that one run made of the images."""
    data = compared_data(gallery, projection)
    data["lonely"] = np.argsort(gallery["similarities"][:, 0], kind="stable")[:OUTLIERS].tolist()
    data["pairs"] = near_duplicates(gallery)
    data["pair_thresholds"] = [ALIKE, SAME_PIXELS]
    if "group" in gallery:
        data["groups"] = groups(gallery)
        data["unwanted"] = np.argsort(gallery["confidence"], kind="stable")[:OUTLIERS].tolist()
    return data


def groups(gallery: Gallery) -> dict[str, Any]:
    """The prototypes or clusters: the largest with their images, the surest first, and how many there are of each kind.

    An image chooses at most one group, so many prototypes are mostly empty ones.
    """
    chosen, sure = gallery["group"], gallery["confidence"]
    count = len(gallery["group_mean"])
    sizes = np.bincount(chosen, minlength=count)
    members = np.split(np.lexsort((-sure, chosen)), np.cumsum(sizes)[:-1])  # by group, the surest first
    marks = [_marks(gallery, number, int(size)) for number, size in enumerate(sizes)]
    kinds = [mark["kind"] for listed in marks for mark in listed]
    largest = np.sort(np.lexsort((-gallery["group_mean"], -sizes))[:MOST_GROUPS])
    return {
        "count": count,
        "used": int((sizes > 0).sum()),
        "kinds": {kind: kinds.count(kind) for kind in ("near-duplicate", "dead", "empty") if kind in kinds},
        "shown": [_group(gallery, int(number), members[number], marks[number]) for number in largest],
    }


def _group(gallery: Gallery, number: int, members: np.ndarray, marks: list[dict[str, Any]]) -> dict[str, Any]:
    sure = gallery["confidence"][members]
    group: dict[str, Any] = {
        "number": number,
        "members": members.tolist(),
        "confidence": round(float(sure.mean()), 3) if len(members) else 0.0,
        "marks": marks,
    }
    if not len(members):
        group["best"] = gallery["group_best"][number].tolist()
    if "labels" in gallery:
        group["classes"] = _top_classes(gallery["labels"][members])
        group["purity"] = group["classes"][0][1] if group["classes"] else None  # no labelled member
    return group


def near_duplicates(gallery: Gallery) -> dict[str, Any]:
    """Pairs of images that are almost the same to the encoder: how many, and the closest."""
    near = gallery["neighbours"]
    first, second = np.repeat(np.arange(len(near)), near.shape[1]), near.ravel().astype(np.int64)
    pairs = np.unique(np.sort(np.stack([first, second], axis=1), axis=1), axis=0)  # (P, 2)
    white = whitened(gallery["embeddings"])
    cosines = np.concatenate(
        [(white[part[:, 0]] * white[part[:, 1]]).sum(axis=1) for part in np.array_split(pairs, len(pairs) // 8192 + 1)]
    )
    close = cosines >= ALIKE
    pairs, cosines = pairs[close], cosines[close]
    correlations = (coarse(gallery["thumbnails"][pairs[:, 0]]) * coarse(gallery["thumbnails"][pairs[:, 1]])).sum(axis=1)
    same = np.flatnonzero(correlations >= SAME_PIXELS)
    order = same[np.argsort(-(cosines + correlations)[same], kind="stable")]
    shown = [
        [*(int(i) for i in pairs[k]), round(float(cosines[k]), 2), round(float(correlations[k]), 2)]
        for k in order[:PAIRS]
    ]
    return {"count": len(order), "shown": shown}


def coarse(thumbnails: np.ndarray) -> np.ndarray:
    """Thumbnails as unit vectors of few pixels, the mean colour removed: their products are correlations."""
    count, height, width = thumbnails.shape[:3]
    down, across = max(1, height // COARSE), max(1, width // COARSE)
    cut = thumbnails[:, : height // down * down, : width // across * across]
    blocks = cut.reshape(count, height // down, down, width // across, across, 3).mean(axis=(2, 4))
    centred = (blocks - blocks.mean(axis=(1, 2), keepdims=True)).reshape(count, math.prod(blocks.shape[1:]))
    return np.asarray(centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-6))


def whitened(embeddings: np.ndarray) -> np.ndarray:
    """Unit vectors in which all main directions weigh the same: only images alike in all of them are close."""
    unit = embeddings.astype(np.float32)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    unit -= unit.mean(axis=0)
    variances, directions = np.linalg.eigh(unit.T @ unit / len(unit))
    count = max(1, min(WHITENED, unit.shape[1], len(unit) // 4))
    scale = np.sqrt(np.maximum(variances[-count:], 1e-7 * max(float(variances[-1]), 1e-12)))
    white = unit @ (directions[:, -count:] / scale)
    return np.asarray(white / np.maximum(np.linalg.norm(white, axis=1, keepdims=True), 1e-12))


def average_purity(gallery: Gallery) -> float | None:
    """Part of the labelled images that are of their group's commonest class."""
    if "labels" not in gallery or "group" not in gallery:
        return None
    labelled = gallery["labels"] >= 0
    labels, chosen = gallery["labels"][labelled], gallery["group"][labelled]
    if not len(labels):
        return None
    pairs, counts = np.unique(np.stack([chosen, labels], axis=1), axis=0, return_counts=True)
    most = np.zeros(len(gallery["group_mean"]), np.int64)
    np.maximum.at(most, pairs[:, 0], counts)
    return float(most.sum() / len(labels))


def _marks(gallery: Gallery, number: int, size: int) -> list[dict[str, Any]]:
    marks: list[dict[str, Any]] = []
    prototypes = str(gallery["grouping"]) == "prototypes"
    if not size:
        dead = prototypes and gallery["group_mean"][number] < DEAD / len(gallery["group_mean"])
        marks.append({"kind": "dead" if dead else "empty"})
    if gallery["group_cosine"][number] > NEAR_DUPLICATE:
        marks.append({"kind": "near-duplicate", "of": int(gallery["group_twin"][number])})
    return marks


def _top_classes(labels: np.ndarray) -> list[tuple[int, float]]:
    labels = labels[labels >= 0]
    if not len(labels):
        return []
    counts = np.bincount(labels)
    top = np.argsort(-counts, kind="stable")[:TOP_CLASSES]
    return [(int(c), round(float(counts[c] / len(labels)), 3)) for c in top if counts[c]]


def _class_names(gallery: Gallery) -> list[str]:
    """Names of the classes, or their numbers where the data name none."""
    names = [str(name) for name in gallery["class_names"]]
    return names + [str(number) for number in range(len(names), int(gallery["labels"].max(initial=-1)) + 1)]


def _queries(gallery: Gallery) -> list[int]:
    """Images to ask for their neighbours: of varied classes where there are labels."""
    order = np.random.default_rng(1).permutation(len(gallery["rows"]))
    if "labels" not in gallery:
        return [int(place) for place in order[:QUERIES]]
    labels = gallery["labels"][order]
    first = [int(order[np.flatnonzero(labels == c)[0]]) for c in np.unique(labels[labels >= 0])[:QUERIES]]
    return first + [int(place) for place in order if int(place) not in first][: QUERIES - len(first)]


def _same_label(gallery: Gallery) -> dict[str, float] | None:
    """Part of the neighbours that share the label of their image, by the encoder and by the random one."""
    if "labels" not in gallery:
        return None
    labels = gallery["labels"]
    known = labels >= 0
    shares = np.bincount(labels[known]) / max(1, known.sum())

    def part(neighbours: np.ndarray) -> float:
        others = labels[neighbours[known]]
        return float(((others == labels[known, None]) & (others >= 0)).sum() / max(1, (others >= 0).sum()))

    return {
        "trained": part(gallery["neighbours"]),
        "random": part(gallery["random_neighbours"]),
        "chance": float((shares**2).sum()),
    }


def _short(name: str) -> str:
    """A name short enough for a page with ten thousand of them: a long one keeps its beginning and its end."""
    half = (LONGEST_NAME - 1) // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}\u2026{name[-half:]}"


def _thousandths(values: np.ndarray) -> np.ndarray:
    return (np.nan_to_num(values.astype(np.float64)) * 1000).round().astype(np.int64)
