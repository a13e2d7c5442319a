"""Accuracy after training in float32 and in bfloat16, with everything else the same.

    python -m benchmarks.precision cifar10-train.parquet --runs FOLDER --out results/benchmarks/precision.json

CARL's `robust` preset on the first 10,000 images, 20 epochs, three seeds per precision. Each run is judged by
`linear-cached` and kNN on all test images. FOLDER keeps the runs: called again, the command resumes what was
interrupted and measures nothing twice. It takes about an hour on two cores.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from carl import files
from carl.device import hardware
from carl.evaluation.evaluate import evaluate
from carl.evaluation.protocols import PROTOCOLS
from carl.evaluation.protocols.base import EvaluationRequest
from carl.records.environment import machine
from carl.records.metrics import end_of, has_finished, read_records
from carl.records.run_directory import RunDirectory
from carl.training.plan import PretrainRequest, plan
from carl.training.run import carry_out

JUDGED_BY = ("linear-cached", "knn")
EPOCHS, IMAGES = 20, 10_000


def trained(data: str, precision: str, seed: int, folder: Path) -> RunDirectory:
    """A finished run, as good as new or from before."""
    run = RunDirectory(folder / f"{precision}-seed-{seed}")
    if not has_finished(read_records(run.metrics_file)):
        layer = {
            "data": {"source": data, "limit": IMAGES, "limit_by": "first"},
            "method": {"name": "carl", "preset": "robust"},
            "train": {"epochs": EPOCHS, "seed": seed, "precision": precision, "batch_size": 256},
            "probe": {"every": EPOCHS},
            "log": {"report": False},
        }
        carry_out(plan(PretrainRequest(layer, run.path, resume="auto")))
    return run


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By precision and protocol: mean and standard deviation over seeds."""
    found: dict[str, Any] = {}
    for precision in sorted({row["precision"] for row in rows}):
        for protocol in JUDGED_BY:
            values = [row[protocol] for row in rows if row["precision"] == precision]
            spread = statistics.stdev(values) if len(values) > 1 else None
            found.setdefault(precision, {})[protocol] = {
                "mean": round(statistics.mean(values), 2), "sd": spread and round(spread, 2), "seeds": len(values),
            }  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp32"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, required=True, help="folder for the run directories")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in given.seeds:
        for precision in given.precisions:
            run = trained(given.data, precision, seed, given.runs)
            row: dict[str, Any] = {"precision": precision, "seed": seed}
            for protocol in JUDGED_BY:
                result = evaluate(EvaluationRequest(str(run.path), protocol=protocol))
                row[protocol] = result["accuracy"]["trained"][PROTOCOLS[protocol].headline]
            rows.append(row | {"training_seconds": (end_of(read_records(run.metrics_file)) or {}).get("seconds")})
            print(rows[-1], flush=True)
            files.write_json(given.out, {
                "images": IMAGES, "epochs": EPOCHS, "preset": "robust", "summary": summary(rows), "rows": rows,
                "made": time.strftime("%Y-%m-%d %H:%M:%S"), "machine": machine(hardware(torch.device("cpu"))),
            })  # fmt: skip


if __name__ == "__main__":
    main()
