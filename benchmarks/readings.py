"""Readings of the paper, side by side: the first epochs of its CIFAR-10 run with one value changed at a time.

    python -m benchmarks.readings cifar10-train.parquet --runs FOLDER --out results/reproduction/readings.json
    python -m benchmarks.readings cifar10-train.parquet joint two-hidden --epochs 10 --runs FOLDER --out ...

Each run has the paper's schedule of 200 epochs and is stopped after the first few. Readings are compared on training
images only: 10,000 vote or teach a linear classifier, 4,000 others are judged. FOLDER keeps the runs: called again, the
command resumes what was interrupted and trains nothing twice. An epoch takes about 100 s on one core with bfloat16.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from carl import files
from carl.data.dataset import Statistics
from carl.data.open import open_dataset
from carl.device import hardware
from carl.evaluation.features import extract_features
from carl.evaluation.logistic import linear_probe
from carl.evaluation.neighbours import knn_accuracy
from carl.records.environment import machine
from carl.records.metrics import read_records
from carl.records.run_directory import RunDirectory
from carl.use.encoder import open_encoder

# What the paper leaves open, and what is set for it. `paper` is the preset as it is.
READINGS: dict[str, tuple[str, ...]] = {
    "paper": (),
    "batch-norm-embedding": ("method.embedding_norm=batch",),  # "the projection head also has a batch normalization"
    "cifar-views": ("views.jitter_strength=0.5", "views.blur=0"),  # as SimCLR has them on CIFAR
    "apex-larc": (
        "optim.trust_coefficient=0.02",
        "optim.trust_clip=true",
    ),  # the defaults of apex's LARC
    "exclude-none": ("optim.exclude=none",),  # as SwAV's code: biases and norms are adapted and decayed too
    "sgd": ("optim.name=sgd",),  # "pure SGD produces similar results", at the rate of LARS
    "joint": ("method.targets=joint",),
    "prior-each": ("method.prior_mean=each",),
    "two-hidden": ("model.hidden_layers=2",),
    "unit-prototypes": ("method.prototype_norm=true",),
    "unit-embeddings": ("method.prototype_norm=true", "method.embedding_norm=l2", "method.temperature=0.1"),
    "views-apart": ("method.views_together=false",),
    "half-rate": ("optim.lr=0.3",),
    "small-stem": ("model.stem=small",),
    "weight-decay-1e-6": ("optim.weight_decay=1e-6",),  # as SwAV's script
    "batch-norm-unit-prototypes": ("method.embedding_norm=batch", "method.prototype_norm=true"),  # near CARP's head
    "batch-norm-cifar-views": ("method.embedding_norm=batch", "views.jitter_strength=0.5", "views.blur=0"),
    "batch-norm-joint": ("method.embedding_norm=batch", "method.targets=joint"),
    "batch-norm-two-hidden": ("method.embedding_norm=batch", "model.hidden_layers=2"),
    "simclr": (),  # not a reading of CARL but the method beside it, with its own `paper` preset
}
SCHEDULE, VOTERS, JUDGED, NEIGHBOURS = 200, 10_000, 4_000, 20
KEPT = (2, 4, 6, 8, 10, 20, 30, 40, 50, 100, 150, 200)  # epochs at which the encoder is kept


def trained(data: str, name: str, epochs: int, run: RunDirectory) -> Path:
    """The encoder after so many epochs; trains up to there unless it has been kept."""
    wanted = run.kept_encoders / f"epoch-{epochs:04d}.safetensors"
    values = (
        f"train.keep_epochs={list(KEPT)}", "probe.every=2",
        "log.report=false", *READINGS[name],
    )  # fmt: skip
    settings = [word for value in values for word in ("--set", value)]
    method = "simclr" if name == "simclr" else "carl"
    command = [sys.executable, "-P", "-m", "carl", "pretrain", data, "--method", method, "--preset", "paper"]
    command += ["--epochs", str(SCHEDULE), "--seed", "0", "--batch-size", "256", *settings]
    command += ["--out", str(run.path), "--resume", "auto"]
    if not wanted.is_file():
        with subprocess.Popen(command) as child:
            while child.poll() is None and not wanted.is_file():
                time.sleep(1)
            child.send_signal(signal.SIGTERM)  # saves, so that more epochs can follow
    if not wanted.is_file():
        raise SystemExit(f"{name}: stopped before epoch {epochs}; the same command resumes it")
    return wanted


def judged(weights: Path, data: str) -> dict[str, float]:
    """kNN and the cached linear probe on the first images of the file, which are in no order."""
    split, used = open_dataset(data).train, open_encoder(weights, device="cpu")
    rows, statistics = np.arange(VOTERS + JUDGED), Statistics(used.mean, used.std)
    found = extract_features(used.encoder, split, statistics, used.image_size, used.device, rows=rows)
    labels = torch.from_numpy(np.asarray(split.labels)[rows])
    parts = found[:VOTERS], labels[:VOTERS], found[VOTERS:], labels[VOTERS:]
    return {
        "knn": round(knn_accuracy(*parts, (NEIGHBOURS,))[NEIGHBOURS], 2),
        "linear": round(linear_probe(*parts).accuracy.top1, 2),
    }


def row(data: str, name: str, epochs: int, folder: Path) -> dict[str, Any]:
    run = RunDirectory(folder / name)
    found = judged(trained(data, name, epochs, run), data)
    probes = [record for record in read_records(run.metrics_file) if record["kind"] == "probe"]
    then = {record["epoch"]: record for record in probes}.get(epochs, {})
    figures = {"prototypes used": "used", "information": "information"}
    seen = {shown: then[key] for shown, key in figures.items() if key in then}
    return {"reading": name, "settings": READINGS[name], "epochs": epochs, "seeds": 1, **found, **seen}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("readings", nargs="*", help=f"some of {', '.join(READINGS)}; all if none is named")
    parser.add_argument("--epochs", type=int, default=4, help="epochs to train: one of those that runs keep")
    parser.add_argument("--runs", type=Path, required=True, help="folder for the run directories")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if unknown := set(given.readings) - set(READINGS):
        parser.error(f"{', '.join(sorted(unknown))}: no such reading; use {', '.join(READINGS)}")
    if given.epochs not in KEPT:
        parser.error(f"--epochs {given.epochs}: encoders are kept at other epochs; use one of {KEPT}")
    for name in given.readings or READINGS:
        known = json.loads(given.out.read_text())["rows"] if given.out.is_file() else []
        others = [one for one in known if (one["reading"], one["epochs"]) != (name, given.epochs)]
        rows = [*others, row(given.data, name, given.epochs, given.runs)]
        print(rows[-1], flush=True)
        files.write_json(given.out, {
            "schedule": SCHEDULE, "voters": VOTERS, "judged": JUDGED, "rows": rows,
            "made": time.strftime("%Y-%m-%d %H:%M:%S"), "machine": machine(hardware(torch.device("cpu"))),
        })  # fmt: skip


if __name__ == "__main__":
    main()
