"""Evaluation of a run by a named protocol; the result is a JSON file in the run directory."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from carl import files
from carl.assembly import (
    build_method,
    gather_facts,
    load_data,
    pick_device,
    random_encoder,
    with_absolute_paths,
    without_init,
)
from carl.config import merge, resolve
from carl.data.images import UNLABELLED, Dataset, Split
from carl.errors import UserError
from carl.evaluation.features import extract_features
from carl.evaluation.knn import knn_accuracy
from carl.methods import find_method
from carl.runs import RunDirectory, read_weights_into

NEIGHBOURS = (1, 5, 20, 200)
TEMPERATURE = 0.1

Result = dict[str, Any]


def evaluate_knn(path: Path, data: str | None = None, force: bool = False) -> Result:
    """Offline kNN of a run's encoder on whole splits, beside the same encoder with random weights."""
    run = RunDirectory.open(path)
    config = run.read_config()
    if data is not None:
        layer = with_absolute_paths({"data": {"source": data}})
        config = resolve([merge([config.model_dump(), layer])], find_method(config.method.name).Options)
    if not run.encoder_file.is_file():
        raise UserError(f"{run.path} has no encoder.safetensors yet; train it first: carl pretrain --resume {run.path}")
    name = Path(config.data.source).stem
    target = run.results / f"knn-{name}.json"
    if target.is_file() and not force:
        stored: Result = json.loads(target.read_text(encoding="utf-8"))
        same_encoder = stored.get("encoder_modified") == run.encoder_file.stat().st_mtime_ns
        if same_encoder and stored.get("data") == config.data.source:
            return stored
    device = pick_device("auto")  # the machine may be another than the one that trained
    dataset = load_data(config)
    train, test = labelled_splits(dataset, config.data.source)
    facts = gather_facts(config, dataset)
    method = build_method(without_init(config), facts, device)
    read_weights_into(run.encoder_file, method.encoder)
    size = facts.image_size
    encoders = {"trained": method.encoder, "random": random_encoder(config, facts, device)}
    result: Result = {
        "protocol": "knn",
        "kind": "offline: the run's training images vote, all test images are judged",
        "data": config.data.source,
        "data_fingerprint": dataset.fingerprint,
        "seed": config.train.seed,
        "train_images": len(train),
        "test_images": len(test),
        "temperature": TEMPERATURE,
        "accuracy": {
            which: _accuracy(encoder, dataset, train, test, size, device) for which, encoder in encoders.items()
        },
        "encoder_modified": run.encoder_file.stat().st_mtime_ns,
        "made": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    files.write_json(target, result)
    return result


def labelled_splits(dataset: Dataset, source: str) -> tuple[Split, Split]:
    """Training and test images that have labels."""
    train, test = dataset.train, dataset.test
    if not train.labelled or test is None or not test.labelled:
        what = "labels" if not train.labelled else "test split with labels"
        raise UserError(f"{source} has no {what}, which this protocol needs; evaluate on other data with --data")
    return train, test


def _accuracy(
    encoder: nn.Module, dataset: Dataset, train: Split, test: Split, size: int, device: torch.device
) -> dict[str, float]:
    def part(split: Split) -> tuple[Tensor, Tensor]:
        assert split.labels is not None
        rows = (split.labels != UNLABELLED).nonzero()[0]
        features = extract_features(encoder, split, dataset.statistics, size, device, rows)
        return features, torch.from_numpy(split.labels[rows])

    (bank, votes), (queries, truth) = part(train), part(test)
    accuracy = knn_accuracy(bank, votes, queries, truth, NEIGHBOURS, TEMPERATURE)
    return {str(k): round(value, 2) for k, value in accuracy.items()}


def table(result: Result) -> list[str]:
    """The result as lines for a terminal."""
    accuracy = result["accuracy"]
    lines = [f"kNN top-1 accuracy, {result['kind']} ({result['train_images']} / {result['test_images']} images)"]
    lines.append("  neighbours   this run   random weights   gain")
    for k, value in accuracy["trained"].items():
        other = accuracy["random"][k]
        lines.append(f"  {k:>10}   {value:7.2f}%   {other:13.2f}%   {value - other:+.2f}")
    return lines
