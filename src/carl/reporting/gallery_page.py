"""What the page shows of the images, as plain data: groups, flags, neighbours, outliers, pairs almost the same.

In the page, images 0 to N - 1 are the sample, with places on the map and neighbours. Images from N on are listed only.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from carl.evaluation.results import AT_START, RANDOM_WEIGHTS, UNTRAINED
from carl.records.gallery import Gallery
from carl.records.given_names import GivenNames, fingerprint
from carl.records.near_duplicates import ALMOST_SAME_COSINE, ALMOST_SAME_PIXELS
from carl.records.prototypes import DEAD, TWIN
from carl.reporting.projections import map_places
from carl.use.embedding_files import name_as_text

WHITENED = 256  # directions of the whitening; plain cosines of a young encoder are near 1 for all pairs
COARSE = 8  # side at which pixels are compared
OUTLIERS, PAIRS, QUERIES, TOP_CLASSES = 24, 24, 10, 5
MOST_GROUPS = 3000  # in the page; of more the largest
NAMES_BYTES = 8_000_000  # for all names in a page; if they take more, long ones are cut
LONGEST_NAME = 60  # characters of names that are cut
# What a run's neighbours are laid beside, the first that there is: by name in the gallery, and in words.
BESIDE = {AT_START: "the encoder it started from", UNTRAINED: RANDOM_WEIGHTS}


def listed_order(gallery: Gallery) -> np.ndarray:
    """Places among the images listed (M,) in the order of the page: the sample first, then the others."""
    if "listed_rows" not in gallery:
        return np.arange(len(gallery["rows"]))
    sample = np.searchsorted(gallery["listed_rows"], gallery["rows"])
    others = np.delete(np.arange(len(gallery["listed_rows"])), sample)
    return np.concatenate([sample, others])


def image_data(gallery: Gallery, base: str | None = None) -> dict[str, Any]:
    """The images themselves, without their pixels: labels, names, flags; the same for all runs on the same images.

    `base` is the folder that the names start from, None if they are not paths of files.
    """
    order = listed_order(gallery)
    data: dict[str, Any] = {
        "count": len(gallery["rows"]),
        "listed": len(order),
        "total": int(gallery["total_images"]),
        "rows": gallery["listed_rows"][order].tolist() if "listed_rows" in gallery else gallery["rows"].tolist(),
        "base": base,
        "pixelated": max(gallery["thumbnails"].shape[1:3]) <= 40,  # a few large pixels are clearer than a blur
        "classes": [],
        "queries": _queries(gallery),
    }
    if "labels" in gallery:
        data["labels"] = gallery["labels"].tolist()
        data["classes"] = _class_names(gallery)
    if (names := image_names(gallery)) is not None:
        data["names"], cut = shared_beginnings(names)
        if cut:
            data["base"] = None  # what is cut leads to no file
    if "flags" in gallery:
        data |= _flag_data(gallery, order)
    return data


def image_names(gallery: Gallery) -> list[str] | None:
    """The names of all images listed, in the order of the page, as `carl embed` would write them."""
    if "listed_names" in gallery:
        return [name_as_text(str(name)) for name in gallery["listed_names"][listed_order(gallery)]]
    return [name_as_text(str(name)) for name in gallery["names"]] if "names" in gallery else None


def shared_beginnings(names: list[str]) -> tuple[dict[str, list[Any]], bool]:
    """Each name as what it adds to the beginning of the name before it, and whether names had to be cut."""
    encoded = _front_coded(names)
    if sum(len(rest.encode("utf-8", "replace")) for rest in encoded["rest"]) <= NAMES_BYTES:
        return encoded, False
    return _front_coded([_short(name) for name in names]), True


def _front_coded(names: list[str]) -> dict[str, list[Any]]:
    shared, rest, before = [], [], ""
    for name in names:
        pairs = enumerate(zip(before, name, strict=False))
        same = next((place for place, (a, b) in pairs if a != b), min(len(before), len(name)))
        shared.append(len(name[:same].encode("utf-16-le", "surrogatepass")) // 2)  # as a script counts
        rest.append(name[same:])
        before = name
    return {"shared": shared, "rest": rest}


def _flag_data(gallery: Gallery, order: np.ndarray) -> dict[str, Any]:
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    repeats = np.flatnonzero(gallery["duplicate_of"] >= 0)
    told = zip(gallery["flag_names"], gallery["flag_words"], gallery["flag_counts"], strict=True)
    return {
        "flags": gallery["flags"][order].tolist(),
        "flag_list": [{"name": str(name), "words": str(words), "count": int(count)} for name, words, count in told],
        "duplicate_of": [[int(place[i]), int(place[gallery["duplicate_of"][i]])] for i in repeats],
    }


def names_data(gallery: Gallery, given: GivenNames) -> dict[str, Any]:
    """Names of groups and tags, with the images of the page by number and those elsewhere by path."""
    groups = {}
    if "group_names" in gallery:
        groups = {number: str(name) for number, name in enumerate(gallery["group_names"]) if str(name)}
    groups |= given.groups
    place = {name: i for i, name in enumerate(image_names(gallery) or [])}
    return {
        "of": groups_fingerprint(gallery),
        "groups": {str(number): name for number, name in groups.items()},
        "tags": {tag: [place[path] for path in paths if path in place] for tag, paths in given.tags.items()},
        "elsewhere": {tag: [path for path in paths if path not in place] for tag, paths in given.tags.items()},
    }


def groups_fingerprint(gallery: Gallery) -> str:
    """Tells these groups from others, for files of names; empty if there are none."""
    return fingerprint(gallery["group_mean"]) if "group_mean" in gallery else ""


def compared_data(gallery: Gallery, projection: str) -> dict[str, Any]:
    """What one run made of the images, as far as it is laid beside other runs."""
    places, layout = map_places(gallery, projection)
    beside = next((name for name in BESIDE if f"{name}_neighbours" in gallery), None)
    data: dict[str, Any] = {
        "projection": layout,
        "places": places.ravel().tolist(),
        "near": gallery["neighbours"].shape[1],
        "neighbours": gallery["neighbours"].ravel().tolist(),
        "nearest": _thousandths(gallery["similarities"][:, :1]).ravel().tolist(),
        "before": gallery[f"{beside}_neighbours"].ravel().tolist() if beside else None,
        "before_name": BESIDE[beside] if beside else "",
        "before_is_random": beside == UNTRAINED,
        "same_label": _same_label(gallery),
    }
    if "group" in gallery:
        data["grouping"] = str(gallery["grouping"])
        data["group"] = _listed_group(gallery).tolist()
        data["confidence"] = _thousandths(gallery["confidence"]).tolist()
    return data


def gallery_data(gallery: Gallery, projection: str) -> dict[str, Any]:
    """All that one run made of the images."""
    data = compared_data(gallery, projection)
    if "start_positions" in gallery:
        start = {name: gallery[f"start_{name}"] for name in ("embeddings", "positions")}
        data["before_places"] = map_places(start, projection)[0].ravel().tolist()
    data["lonely"] = np.argsort(gallery["similarities"][:, 0], kind="stable")[:OUTLIERS].tolist()
    data["pairs"] = almost_same(gallery)
    data["pair_thresholds"] = [ALMOST_SAME_COSINE, ALMOST_SAME_PIXELS]
    if "group" in gallery:
        data["groups"] = groups(gallery)
        data["unwanted"] = np.argsort(gallery["confidence"], kind="stable")[:OUTLIERS].tolist()
    return data


def groups(gallery: Gallery) -> dict[str, Any]:
    """The prototypes or clusters: the largest with their images, the surest first, and how many there are of each kind.

    An image chooses at most one group, so many prototypes are mostly empty ones. Images without a place on the map come
    last in their group.
    """
    chosen = _listed_group(gallery)
    sure = np.concatenate([gallery["confidence"], np.full(len(chosen) - len(gallery["group"]), -2.0)])
    count = len(gallery["group_mean"])
    sizes = np.bincount(chosen, minlength=count)
    members = np.split(np.lexsort((-sure, chosen)), np.cumsum(sizes)[:-1])  # by group, the surest first
    marks = [_marks(gallery, number, int(size)) for number, size in enumerate(sizes)]
    kinds = [mark["kind"] for listed in marks for mark in listed]
    largest = np.sort(np.lexsort((-gallery["group_mean"], -sizes))[:MOST_GROUPS])
    return {
        "count": count,
        "used": int((sizes > 0).sum()),
        "kinds": {kind: kinds.count(kind) for kind in ("twin", "dead", "empty") if kind in kinds},
        "shown": [_group(gallery, int(number), members[number], marks[number]) for number in largest],
    }


def _listed_group(gallery: Gallery) -> np.ndarray:
    """The group of every image listed, in the order of the page."""
    if "listed_group" not in gallery:
        return np.asarray(gallery["group"])
    listed = gallery["listed_group"][listed_order(gallery)]
    return np.concatenate([gallery["group"], listed[len(gallery["group"]) :]])


def _group(gallery: Gallery, number: int, members: np.ndarray, marks: list[dict[str, Any]]) -> dict[str, Any]:
    sampled = members[members < len(gallery["confidence"])]
    sure = gallery["confidence"][sampled]
    group: dict[str, Any] = {
        "number": number,
        "members": members.tolist(),
        "confidence": round(float(sure.mean()), 3) if len(sampled) else 0.0,
        "marks": marks,
    }
    if not len(members):
        group["best"] = gallery["group_best"][number].tolist()
    if "labels" in gallery:
        group["classes"] = _top_classes(gallery["labels"][sampled])
        group["purity"] = group["classes"][0][1] if group["classes"] else None  # no labelled member
    return group


def almost_same(gallery: Gallery) -> dict[str, Any]:
    """Pairs of images that are almost the same: how many, and the closest."""
    near = gallery["neighbours"]
    first, second = np.repeat(np.arange(len(near)), near.shape[1]), near.ravel().astype(np.int64)
    pairs = np.unique(np.sort(np.stack([first, second], axis=1), axis=1), axis=0)  # (P, 2)
    white = whitened(gallery["embeddings"])
    cosines = np.concatenate(
        [(white[part[:, 0]] * white[part[:, 1]]).sum(axis=1) for part in np.array_split(pairs, len(pairs) // 8192 + 1)]
    )
    close = cosines >= ALMOST_SAME_COSINE
    pairs, cosines = pairs[close], cosines[close]
    correlations = (coarse(gallery["thumbnails"][pairs[:, 0]]) * coarse(gallery["thumbnails"][pairs[:, 1]])).sum(axis=1)
    same = np.flatnonzero(correlations >= ALMOST_SAME_PIXELS)
    order = same[np.argsort(-(cosines + correlations)[same], kind="stable")]
    shown = [
        [*(int(i) for i in pairs[k]), round(float(cosines[k]), 2), round(float(correlations[k]), 2)]
        for k in order[:PAIRS]
    ]
    firsts = {int(i) for i in pairs[order, 0]}
    seconds = sorted({int(i) for i in pairs[order, 1]} - firsts)  # so that of every pair at least one image stays
    return {"count": len(order), "shown": shown, "seconds": seconds}


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
    if gallery["group_cosine"][number] > TWIN:
        marks.append({"kind": "twin", "of": int(gallery["group_twin"][number])})
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
    """Part of the neighbours that share the label of their image, by the encoder and by those it is compared with."""
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
        **{name: part(gallery[f"{name}_neighbours"]) for name in BESIDE if f"{name}_neighbours" in gallery},
        "chance": float((shares**2).sum()),
    }


def _short(name: str) -> str:
    """A name short enough for a page with very many of them: a long one keeps its beginning and its end."""
    half = (LONGEST_NAME - 1) // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}\u2026{name[-half:]}"


def _thousandths(values: np.ndarray) -> np.ndarray:
    return (np.nan_to_num(values.astype(np.float64)) * 1000).round().astype(np.int64)
