"""Run directories as training leaves them, made without torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from carl.evaluation.protocols import PROTOCOLS
from carl.records.gallery import GALLERY_FORMAT
from carl.records.weights_hash import file_hash

CONFIG = """
[data]
source = {source}
image_size = 16
[views]
pipeline = "simclr"
[model]
backbone = "resnet18"
[method]
name = "{method}"
prototypes = {prototypes}
[train]
epochs = {epochs}
batch_size = 16
[probe]
train_images = 2000
neighbours = 20
"""
CLASSES = ("cat", "dog", "<u>owl</u>", "fish")


def make_gallery(
    images: int = 80, prototypes: int = 10, labels: bool = True, names: list[str] | None = None,
    grouping: str = "prototypes", side: int = 16, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """A gallery in which class c has embeddings around one direction, and prototypes of its own."""
    rng = np.random.default_rng(seed)
    classes = np.arange(images) % len(CLASSES)
    embeddings = (np.eye(32)[classes] + 0.2 * rng.normal(size=(images, 32))).astype(np.float32)
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    near = min(8, images - 1)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -2)
    neighbours = np.argsort(-cosines, axis=1)[:, :near].astype(np.int32)
    used = max(1, prototypes - 2)  # the last two stay empty: one merely empty, one dead
    pixels = rng.integers(0, 255, size=(images, 4, 4, 3)).repeat(side // 4, 1).repeat(side // 4, 2).astype(np.uint8)
    gallery: dict[str, Any] = {
        "format": np.int64(GALLERY_FORMAT),
        "total_images": np.int64(images),
        "rows": np.arange(images),
        "embeddings": embeddings.astype(np.float16),
        "positions": embeddings[:, :2],
        "neighbours": neighbours,
        "similarities": np.take_along_axis(cosines, neighbours, axis=1),
        "random_neighbours": np.stack([rng.permutation(np.delete(np.arange(images), i))[:near] for i in range(images)]),
        "thumbnails": pixels,
        "views": rng.integers(0, 255, size=(3, 8, 16, 16, 3)).astype(np.uint8),
        "view_places": np.arange(3) % images,
        "grouping": np.str_(grouping),
        "group": (np.arange(images) % used).astype(np.int32),
        "confidence": np.linspace(0.95, 0.2, images).astype(np.float32),
        "group_mean": np.full(prototypes, 1 / prototypes, np.float32),
        "group_best": np.tile(np.arange(near), (prototypes, 1)).astype(np.int32),
        "group_twin": ((np.arange(prototypes) + 1) % prototypes).astype(np.int32),
        "group_cosine": np.full(prototypes, 0.3, np.float32),
    }
    gallery["group_mean"][-1] = 0.001 / prototypes
    gallery["group_cosine"][:1] = 0.99
    if labels:
        gallery |= {"labels": classes, "class_names": np.array(CLASSES)}
    if names is not None:
        gallery["names"] = np.array(names, dtype=np.str_)
    return gallery


FLAGS = ("too dark", "<i>blurry</i>", "exact duplicate")


def flagged(gallery: dict[str, Any]) -> dict[str, Any]:
    """The gallery with flags: every fifth image is dark, every seventh blurry, and the last repeats the first."""
    count = len(gallery.get("listed_rows", gallery["rows"]))
    places = np.arange(count)
    flags = ((places % 5 == 0) * 1 + (places % 7 == 0) * 2).astype(np.uint32)
    repeats = np.full(count, -1)
    if count > 1:
        flags[-1] |= 4
        repeats[-1] = 0
    return gallery | {
        "flags": flags,
        "flag_names": np.array(FLAGS),
        "flag_words": np.array([f"What {name} means." for name in FLAGS]),
        "flag_counts": np.array([int((flags & bit > 0).sum()) for bit in (1, 2, 4)]),
        "duplicate_of": repeats,
    }


def listed(gallery: dict[str, Any], total: int, side: int = 8) -> dict[str, Any]:
    """The gallery as a sample, spread evenly, of `total` images that are all listed."""
    rows = np.linspace(0, total - 1, len(gallery["rows"])).astype(np.int64)
    group = (np.arange(total) % 8).astype(np.int32)
    group[rows] = gallery["group"]
    small = np.random.default_rng(5).integers(0, 255, (total, 4, 4, 3)).astype(np.uint8)
    small = small.repeat(side // 4, 1).repeat(side // 4, 2)
    names = [f"photos/{number % 10}/{number:06d}.jpg" for number in range(total)]
    return gallery | {
        "total_images": np.int64(total),
        "rows": rows,
        "names": np.array([names[row] for row in rows]),
        "listed_rows": np.arange(total),
        "listed_names": np.array(names),
        "listed_group": group,
        "listed_thumbnails": small,
    }


def make_run(
    path: Path, gallery: dict[str, Any] | None, method: str = "carl", epochs: int = 4, knn: float | None = 60.0,
    finished: bool = True, source: str = "photos", prototypes: int = 10,
    fingerprint: str = "f00d",
) -> Path:  # fmt: skip
    """A run directory whose kNN went from 20 to `knn`, or was not measured."""
    path.mkdir(parents=True)
    (path / "config.toml").write_text(
        CONFIG.format(source=json.dumps(source), method=method, epochs=epochs, prototypes=prototypes)
    )
    command = ["/usr/bin/carl", "pretrain", "<b>x</b>"]
    (path / "environment.json").write_text(json.dumps({"command": command, "device": "cpu", "threads": 2}))
    gain = None if knn is None else knn - 20
    records = [_probe(0, None if gain is None else 20.0, method, prototypes)]
    for epoch in range(1, epochs + 1):
        records.append(
            {"kind": "step", "step": 5 * epoch, "epoch": float(epoch), "loss": 4 / epoch, "lr": 0.1, "own_term": 0.5,
             "images_per_second": 100.0}
        )  # fmt: skip
        records.append(_probe(epoch, None if gain is None else 20 + gain * epoch / epochs, method, prototypes))
    if finished:
        records.append({"kind": "event", "event": "finished", "seconds": 75.0})
    (path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    if gallery is not None:
        np.savez(path / "gallery.npz", **gallery)
    save_file({"conv1.weight": np.full((2, 3), knn or 0, np.float32)}, path / "encoder.safetensors")
    (path / "data.json").write_text(json.dumps({"fingerprint": fingerprint}))
    return path


def add_result(
    run: Path, file: str, protocol: str, trained: dict[str, Any], random: dict[str, Any] | None = None,
    kind: str = "offline: all vote", **more: Any,
) -> None:  # fmt: skip
    """A result file as `carl eval` leaves it: of the run's last weights and own data, unless `more` says otherwise."""
    result = {
        "protocol": protocol, "kind": kind, "target": str(run), "data": "photos", "data_fingerprint": "f00d",
        "epochs": PROTOCOLS[protocol].epochs, "hyperparameters": {},
        "centre": PROTOCOLS[protocol].centre, "encoder_hash": file_hash(run / "encoder.safetensors"),
        "accuracy": {"trained": trained, "random": random or {}}, **more,
    }  # fmt: skip
    (run / "results").mkdir(exist_ok=True)
    (run / "results" / f"{file}.json").write_text(json.dumps(result))


def _probe(epoch: int, knn: float | None, method: str, prototypes: int) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": "probe", "step": 5 * epoch, "epoch": epoch, "rank_me": 7.0}
    if knn is not None:
        record["knn"] = knn
    if epoch:
        record |= {"verdict": "healthy", "warnings": []}
    if method == "carl":
        record |= {
            "used": prototypes - 2, "prototypes": prototypes, "dead": 1, "duplicates": 1, "agreement": 0.5,
            "largest": 0.2, "entropy": 1.0, "mean_entropy": math.log(prototypes) - 0.1,
        }  # fmt: skip
    return record
