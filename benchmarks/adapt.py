"""How good an encoder is after `carl pretrain --init`, beside the encoder it started from.

    python -m benchmarks.adapt flowers --data flowers-train.parquet --test flowers-test.parquet --out results/adapt
    python -m benchmarks.adapt tissues --held-out 500 --out held-out

One run per seed with the preset `adapt`, then kNN and the cached linear probe of the last encoder and of the start, on
the same images. `--held-out` judges on training images that the run did not see. `--set` changes a value.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.microscope import write as write_tissues
from carl import files
from carl.config import Layer, merge, parse_assignments
from carl.data.configured import limited
from carl.data.dataset import Split
from carl.data.open import open_dataset
from carl.defaults import ADAPT_METHOD
from carl.device import hardware
from carl.evaluation.features import extract_features
from carl.evaluation.logistic import linear_probe
from carl.evaluation.neighbours import knn_accuracy
from carl.models.encoders import build_encoder
from carl.models.weights import read_weights_into
from carl.records.adaptation import adaptation
from carl.records.environment import machine
from carl.records.metrics import end_of, read_records
from carl.records.run_directory import RunDirectory
from carl.training.plan import Plan, PretrainRequest, plan
from carl.training.run import carry_out

NEIGHBOURS = (1, 5, 20)


@dataclasses.dataclass(frozen=True)
class Task:
    """Images to adapt to."""

    size: int  # side of the views in pixels
    images: int | None = None  # training images; None for all
    settings: Layer = dataclasses.field(default_factory=dict)


# As for the built-in shapes, whose preset does the same: colour says nothing about the class, so views may change it.
COLOURS: Layer = {"views": {"hue": 0.5, "grey": 0.5, "brightness": 0.8, "contrast": 0.8, "saturation": 0.8}}
TASKS = {
    "flowers": Task(112),
    "cifar10": Task(64, 10_000),
    "cifar100": Task(64, 10_000),
    "shapes": Task(48, 2_000),
    "tissues": Task(48, 2_000, COLOURS),
}


def planned(task: str, source: str, seed: int, given: argparse.Namespace, out: Path) -> Plan:
    """The run of one seed."""
    known = TASKS[task]
    layer: dict[str, Any] = {
        "data": {"source": source, "image_size": known.size, "held_out": given.held_out, "limit": known.images},
        "model": {"init": given.encoder},
        "method": {"name": given.method},
        "train": {"seed": seed},
        "log": {"report": False},
    }
    return plan(PretrainRequest(merge([layer, settings_of(task, given.set)]), out / f"seed-{seed}"))


def settings_of(task: str, given: Sequence[str]) -> Layer:
    """What differs from the preset: the probe's size, what the task's images ask for, and what is `given`."""
    return merge([{"probe": {"images": 400, "train_images": 800}}, TASKS[task].settings, parse_assignments(given)])


def as_assignments(layer: Layer) -> list[str]:
    """The values of a layer as `--set` takes them, for the result file."""
    return [f"{section}.{key}={value}" for section, values in layer.items() for key, value in values.items()]


def judged_split(ready: Plan, given: argparse.Namespace) -> Split:
    """The images to judge on: those held out, those of the file, or the test images of the data."""
    found = ready.dataset.test
    if given.test is not None and not given.held_out:
        other = open_dataset(str(given.test), image_size=ready.facts.image_size)
        found = other.train if other.test is None else other.test
    assert found is not None
    return limited(found, given.judged, "balanced") if given.judged and given.judged < len(found) else found


def figures(weights: Path, ready: Plan, judged: Split, linear: bool) -> dict[str, float]:
    """kNN for each number of neighbours, and the cached linear probe."""
    config, train, device = ready.config, ready.dataset.train, torch.device("cpu")
    model = config.model.model_copy(update={"init": None})
    encoder: nn.Module = build_encoder(model, ready.facts.channels, ready.facts.image_size)
    read_weights_into(weights, encoder)
    encoder.to(memory_format=torch.channels_last)
    statistics_of, size = ready.dataset.statistics, ready.facts.image_size
    bank, queries = (extract_features(encoder, split, statistics_of, size, device) for split in (train, judged))
    labels, answers = (torch.from_numpy(np.asarray(split.labels)) for split in (train, judged))
    found = {f"knn {k}": v for k, v in knn_accuracy(bank, labels, queries, answers, NEIGHBOURS).items()}
    if linear:
        found["linear"] = linear_probe(bank, labels, queries, answers, seed=0).accuracy.top1
    return {name: round(value, 2) for name, value in found.items()}


def one_seed(task: str, source: str, seed: int, given: argparse.Namespace, start: dict[str, float]) -> dict[str, Any]:
    """A run and what became of it; fills `start` the first time."""
    with tempfile.TemporaryDirectory() as folder:
        ready = planned(task, source, seed, given, Path(folder))
        run = RunDirectory(carry_out(ready))
        judged = judged_split(ready, given)
        if not start:
            start |= figures(run.start_file, ready, judged, not given.no_linear)
        last = run.last_file if run.last_file.is_file() else run.encoder_file
        records = read_records(run.metrics_file)
        said = adaptation(records)
        probes = [record for record in records if record["kind"] == "probe"]
        row = {
            "seed": seed,
            "adapted": figures(last, ready, judged, not given.no_linear),
            "kept": "adapted" if last == run.encoder_file else "start",
            "probe": None if said is None else dataclasses.asdict(said),
            "stability": [round(record["neighbour_stability"], 2) for record in probes],
            "images": len(ready.dataset.train),
            "judged": len(judged),
            "epochs": ready.config.train.epochs,
            "training_seconds": round((end_of(records) or {}).get("seconds", 0.0), 1),
        }
        if given.keep is not None:
            shutil.copytree(run.path, given.keep / f"{task}-seed-{seed}", dirs_exist_ok=True)
    print(row, flush=True)
    return row


def gains(rows: list[dict[str, Any]], start: dict[str, float]) -> dict[str, dict[str, float]]:
    """For each figure: the start, the mean over seeds, the gain, and the standard deviation over seeds."""
    found = {}
    for name, before in start.items():
        values = [row["adapted"][name] for row in rows]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        mean = statistics.mean(values)
        found[name] = {
            "start": before, "adapted": round(mean, 2), "gain": round(mean - before, 2), "spread": round(spread, 2),
        }  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--data", help="training images of flowers and CIFAR; the other tasks make theirs")
    parser.add_argument("--test", type=Path)
    parser.add_argument("--held-out", type=int, default=0)
    parser.add_argument("--judged", type=int, default=0, help="judge on this many images, balanced; 0: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--method", default=ADAPT_METHOD)
    parser.add_argument("--encoder", default="timm:tf_efficientnet_lite0")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--no-linear", action="store_true")
    parser.add_argument("--keep", type=Path, help="also keep the run directories here")
    parser.add_argument("--name", help="name of the result file")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    start: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        source = given.data or given.task
        if given.task == "tissues":
            source = str(write_tissues(Path(folder) / "tissues.npz", 2_000 + given.held_out, 1_000))
        rows: list[dict[str, Any]] = []
        for seed in given.seeds:
            rows.append(one_seed(given.task, source, seed, given, start))
            files.write_json(given.out / f"{given.name or f'{given.task}-{given.method}'}.json", {
                "task": given.task, "method": given.method, "encoder": given.encoder,
                "image_size": TASKS[given.task].size,
                "held_out": given.held_out, "settings": as_assignments(settings_of(given.task, given.set)),
                "figures": gains(rows, start), "rows": rows,
                "made": time.strftime("%Y-%m-%d %H:%M:%S"), "machine": machine(hardware(torch.device("cpu"))),
            })  # fmt: skip


if __name__ == "__main__":
    main()
