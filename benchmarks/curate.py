"""Curated against random subsets: a linear probe from the same number of labels, the encoder frozen.

    python -m benchmarks.curate RUN DATA [--keep 100 300 1000] [--seeds 5] [--penalty 0.01] [-o FILE.json]

DATA is a labelled data set with a test split. Its images are embedded by the run's encoder; `carl curate` and a random
draw each choose so many of the training images, whose labels then train a logistic regression that is judged on all
test images. Random subsets differ by their seed, curated ones by the seed of their clusterings. The whole of the
training set is measured too, as what labels could give at most. The penalty is fixed, because a few labels leave none
to choose it on; it is that of `carl.evaluation.logistic` for such cases.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from carl import files
from carl.data import Split, open_dataset
from carl.defaults import FEATURE_BATCH
from carl.errors import UserError
from carl.evaluation.logistic import FEW_PENALTY, linear_probe
from carl.use.curate import DUPLICATED, OUTLIER, select
from carl.use.encoder import TrainedModel, load_trained

Choose = Callable[[int, int], np.ndarray]  # (how many, seed) to rows


@dataclass(frozen=True)
class Outcome:
    """Accuracy of the probe for one way to choose, over the seeds, in percent."""

    labels: int
    way: str
    mean: float
    deviation: float
    accuracies: list[float]
    classes: float  # that the subset holds on average


@dataclass(frozen=True)
class Embeddings:
    features: np.ndarray  # (N, D)
    prototypes: np.ndarray | None  # (N,)
    labels: np.ndarray  # (N,)


def embedded(trained: TrainedModel, split: Split | None) -> Embeddings:
    if split is None or split.labels is None:
        raise UserError("the data need labels and a test split; give for example cifar10")
    pixels, labels = split.images.pixels, split.labels
    parts = [trained.represent(pixels[start : start + FEATURE_BATCH]) for start in range(0, len(pixels), FEATURE_BATCH)]
    chosen = [part.log_p.argmax(1).numpy() for part in parts if part.log_p is not None]
    features = np.concatenate([part.features for part in parts])
    return Embeddings(features, np.concatenate(chosen) if chosen else None, labels)


def ways(train: Embeddings) -> dict[str, Choose]:
    """Curated as the command does it, its parts alone, and random."""

    def at_random(count: int, seed: int) -> np.ndarray:
        return np.random.default_rng(seed).permutation(len(train.labels))[:count]

    def curated(count: int, seed: int) -> np.ndarray:
        return select(train.features, count, train.prototypes, seed=seed).kept

    def by_clusters(count: int, seed: int) -> np.ndarray:
        return select(train.features, count, None, seed=seed).kept

    found: dict[str, Choose] = {"random": at_random, "curated": curated}
    return found if train.prototypes is None else {**found, "curated by k-means groups": by_clusters}


def measure(train: Embeddings, test: Embeddings, keep: list[int], seeds: int, penalty: float) -> list[Outcome]:
    def accuracy(rows: np.ndarray) -> float:
        result = linear_probe(train.features[rows], train.labels[rows], test.features, test.labels, (penalty,))
        return result.accuracy.top1

    outcomes = []
    for count in keep:
        for way, choose in ways(train).items():
            subsets = [choose(count, seed) for seed in range(seeds)]
            accuracies = [accuracy(rows) for rows in subsets]
            classes = statistics.mean(len(np.unique(train.labels[rows])) for rows in subsets)
            deviation = statistics.stdev(accuracies) if seeds > 1 else 0.0
            mean = statistics.mean(accuracies)
            outcomes.append(Outcome(count, way, round(mean, 2), round(deviation, 2), accuracies, classes))
            print(f"{count:>6} labels  {way:<26} {mean:6.2f} +- {deviation:.2f}%  ({classes:.1f} classes)", flush=True)
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("data")
    parser.add_argument("--keep", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--penalty", type=float, default=FEW_PENALTY)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    trained = load_trained(given.run)
    dataset = open_dataset(given.data)
    train, test = (embedded(trained, split) for split in (dataset.train, dataset.test))
    outcomes = measure(train, test, given.keep, given.seeds, given.penalty)
    whole = linear_probe(train.features, train.labels, test.features, test.labels, (given.penalty,)).accuracy.top1
    print(f"all {len(train.labels)} labels: {whole:.2f}%")
    removed = select(train.features, max(given.keep), train.prototypes)
    result: dict[str, Any] = {
        "what": "top-1 accuracy (%) of a linear probe on the test images, trained on so many chosen labels",
        "run": trained.run.path.name,
        "method": trained.config.method.name,
        "epochs": trained.config.train.epochs,
        "data": Path(given.data).name,
        "train_images": len(train.labels),
        "test_images": len(test.labels),
        "seeds": given.seeds,
        "penalty": given.penalty,
        "all_labels": whole,
        "near_duplicates": removed.count(DUPLICATED),
        "outliers": removed.count(OUTLIER),
        "outcomes": [asdict(outcome) for outcome in outcomes],
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "made": time.strftime("%Y-%m-%d"),
    }
    if given.output is not None:
        files.write_json(given.output, result)
        print(given.output)
    else:
        print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
