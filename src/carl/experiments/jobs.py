"""A job: one pretraining run and what is measured of it. Its outcome is one JSON file."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from carl import files
from carl.config import Layer
from carl.evaluation.evaluate import evaluate
from carl.evaluation.health import TOO_EARLY
from carl.evaluation.protocols import Request
from carl.runs import RunDirectory
from carl.training.commands import pretrain

Outcome = dict[str, Any]


@dataclass(frozen=True)
class Measure:
    """An evaluation of a job's encoder."""

    protocol: str
    data: str | None = None  # other than the run's
    limit: int | None = None  # training images of that other data
    fraction: float | None = None
    epochs: int | None = None  # of the protocol
    at_epoch: int | None = None  # of the pretraining: a kept encoder; the last if None

    @property
    def key(self) -> str:
        parts = [self.protocol, *([Path(self.data).stem] if self.data else [])]
        parts += [f"{self.fraction:g}"] if self.fraction else []
        return "-".join(parts + ([f"epoch-{self.at_epoch}"] if self.at_epoch else []))


@dataclass(frozen=True)
class Job:
    """`layer` is the run's configuration; without a method in it, the untrained encoder is measured."""

    name: str  # of its folder; the same name is the same run, in whatever experiment it stands
    layer: Layer
    measures: tuple[Measure, ...]
    cost: float = 1.0  # in images seen, to tell the time left

    @property
    def trains(self) -> bool:
        return "method" in self.layer

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "layer": json.loads(json.dumps(self.layer))}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Job:
        measures = tuple(Measure(**measure) for measure in values["measures"])
        return cls(values["name"], values["layer"], measures, values["cost"])


def outcome_file(root: Path, job: Job) -> Path:
    return root / job.name / "job.json"


def read_outcome(root: Path, job: Job) -> Outcome | None:
    """What a job gave, None before it has run; an outcome for other measures or values does not count."""
    path = outcome_file(root, job)
    try:
        found: Outcome = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if found.get("layer") != job.to_json()["layer"]:
        return None
    missing = {measure.key for measure in job.measures} - set(found.get("measures", {}))
    return None if missing and found.get("state") == "done" else found


def run_job(job: Job, root: Path) -> Outcome:
    """Train (or go on), measure, and write the outcome; finished parts are not done again."""
    start, folder = time.monotonic(), root / job.name
    if job.trains:
        pretrain(job.layer, folder, "auto", ["carl", "experiment", job.name])
    measures = {measure.key: _measured(job, measure, folder) for measure in job.measures}
    outcome: Outcome = {
        "name": job.name,
        "state": "done",
        "layer": job.to_json()["layer"],
        "measures": measures,
        **(training_figures(folder) if job.trains else {}),
        "seconds": round(time.monotonic() - start, 1),
        "made": time.strftime("%Y-%m-%d"),
    }
    files.write_json(outcome_file(root, job), outcome)
    return outcome


def _measured(job: Job, measure: Measure, folder: Path) -> Outcome:
    """The figures of one evaluation, and of random weights where the protocol has them."""
    data = job.layer["data"]
    request = Request(measure.protocol, measure.fraction, 1, measure.epochs)
    if job.trains:
        target = (
            folder if measure.at_epoch is None else folder / "encoders" / f"epoch-{measure.at_epoch:04d}.safetensors"
        )
        other: Layer = {} if measure.limit is None else {"data": {"limit": measure.limit}}
        result = evaluate(str(target), request, measure.data, layer=other)
    else:
        model = job.layer.get("model", {})
        seed = {"train": {"seed": job.layer.get("train", {}).get("seed", 0)}}
        layer: Layer = {"data": {k: v for k, v in data.items() if k != "source"}, "model": model, **seed}
        source = measure.data or data["source"]
        result = evaluate("random", request, source, out=folder / "results", layer=layer)
    kept = ("kind", "data_fingerprint", "train_images", "test_images", "accuracy", "encoder_hash", "seconds")
    return {name: result[name] for name in kept}


def training_figures(folder: Path) -> Outcome:
    """Speed, memory and health of a finished run, from its own files."""
    run = RunDirectory(folder)
    config = run.read_config()
    records = files.read_json_lines(run.metrics_file)
    probes = [r for r in records if r["kind"] == "probe" and r["epoch"] > 0]
    ends = [r for r in records if r.get("event") == "finished"]
    speeds = [r["images_per_second"] for r in records if r["kind"] == "step"]
    data = run.read_data()
    return {
        "config": json.loads(config.model_dump_json(exclude_none=True)),
        "images": None if data is None else data.facts.images,
        "images_per_second": round(statistics.median(speeds), 1) if speeds else None,
        "peak_memory_bytes": ends[-1].get("peak_memory_bytes") if ends else None,
        "train_seconds": round(ends[-1]["seconds"], 1) if ends else None,
        "verdict": probes[-1].get("verdict") if probes else None,
        "collapsed_at": collapsed_at(probes),
        "probes": [_short(probe) for probe in probes],
    }


def collapsed_at(probes: Sequence[Outcome]) -> float | None:
    """The epoch from which on every probe found a collapse; None if the last did not."""
    first = None
    for probe in reversed(probes):
        if probe.get("verdict") != "collapsed":
            break
        first = probe["epoch"]
    return first


def _short(probe: Outcome) -> Outcome:
    wanted = ("epoch", "knn", "rank_me", "spread", "used", "covering", "dead", "duplicates", "information", "agreement")
    short = {name: round(probe[name], 4) for name in wanted if name in probe}
    findings = [kind for kind in probe.get("findings", ()) if kind != TOO_EARLY]
    return {**short, "verdict": probe.get("verdict"), **({"findings": findings} if findings else {})}
