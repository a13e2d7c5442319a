"""Evaluation by a named protocol, from what the user asked to a result file."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from carl import distributed, files
from carl.config import Layer
from carl.data.dataset import Dataset
from carl.data.facts import DataFacts
from carl.device import hardware, pick_device
from carl.errors import UserError
from carl.evaluation.evaluation_data import Material, count_shared, gather_material
from carl.evaluation.protocols import PROTOCOLS, Outcome, Request, check_request, mean_and_deviation
from carl.evaluation.results import centre_of
from carl.evaluation.target import (
    Target,
    find_target,
    load_encoder,
    load_method,
    load_untrained,
    own_record,
    statistics_for,
    unchanged,
)
from carl.methods.build import load_data_for
from carl.models.weights import weights_hash
from carl.records.environment import machine
from carl.terminal import show_progress

Result = dict[str, Any]
MOCO_CROP = 0.08  # smallest area of a crop in torchvision's RandomResizedCrop, which main_lincls.py uses as it is


@dataclass(frozen=True, eq=False)
class Subject:
    """An encoder, the images to judge it on, and what was asked."""

    target: Target
    request: Request
    dataset: Dataset
    material: Material
    facts: DataFacts
    normalisation: str

    @property
    def own_conditions(self) -> bool:
        """Whether the images are those that the run was trained on, in the size that it was trained on."""
        record = own_record(self.target)
        return (
            record is not None
            and record.fingerprint == self.dataset.fingerprint
            and DataFacts.recorded(record) == self.facts
        )

    @property
    def seeds(self) -> range:
        first = self.target.first_seed
        return range(first, first + self.request.seeds)

    @property
    def source(self) -> str:
        return self.target.config.data.source


def evaluate(
    name: str,
    request: Request,
    data: str | None = None,
    backbone: str | None = None,
    out: Path | None = None,
    force: bool = False,
    layer: Layer | None = None,
) -> Result:
    """The result for a run directory, a file of weights or `random`; from the disk if it is there and still holds."""
    check_request(request, data)
    target = find_target(name, data, backbone, layer or {})
    subject = gather_subject(target, request)
    encoder = load_encoder(target, subject.facts, subject.material.device, target.first_seed)
    result: Result = json.loads(json.dumps(header(subject, weights_hash(encoder))))  # as it reads from the disk
    path = result_file(subject, out, result)
    if path.parent.exists() and not path.parent.is_dir():
        raise UserError(f"{path.parent} is a file, and results go into a folder; choose another --out")
    if not force:
        stored = distributed.agreed(json.dumps(stored_result(path, result)))  # all measure, or none
        if stored != "null":
            return dict(json.loads(stored))
    start = time.monotonic()
    # Features, votes, k-means and all training are shared out where they are made; the rest is quick.
    with distributed.apart():
        result |= measure(subject, encoder)
    result |= {"seconds": round(time.monotonic() - start, 1), "made": time.strftime("%Y-%m-%d %H:%M:%S")}
    result["machine"] = machine(hardware(subject.material.device))
    if distributed.is_main():
        files.write_text(path, to_json(result))
    return result


def gather_subject(target: Target, request: Request) -> Subject:
    config = target.config
    device = distributed.start(pick_device(config.train.device))
    dataset = load_data_for(config)
    record = own_record(target)
    if request.protocol == "transfer" and record is not None and record.fingerprint == dataset.fingerprint:
        raise UserError(f"{config.data.source} is what the run was trained on; transfer to other data, or use linear")
    statistics, whose = statistics_for(target, dataset)
    facts = DataFacts.of(config.data, dataset)
    # A run whose views are large crops says that small ones lose what the classes are; else MoCo's.
    crop_min = config.views.crop_min or MOCO_CROP
    material = gather_material(
        dataset, config.data.source, statistics, facts.image_size, crop_min, device, show_progress, request.seen
    )
    return Subject(target, request, dataset, material, facts, whose)


def header(subject: Subject, encoder_hash: str) -> Result:
    """What a result is of: two results with the same header are the same measurement."""
    target, request, material = subject.target, subject.request, subject.material
    protocol = PROTOCOLS[request.protocol]
    return {
        "protocol": request.protocol,
        "kind": protocol.kind,
        "target": target.name,
        "weights": "random" if target.is_random else "trained",
        "data": subject.source,
        "data_fingerprint": subject.dataset.fingerprint,
        "train_images": len(material.train),
        "test_images": len(material.test),
        "held_out": target.config.data.held_out or None,
        "classes": material.classes,
        "class_names": list(subject.dataset.class_names),
        "image_size": material.image_size,
        "crop_min": material.crop_min if protocol.epochs is not None else None,
        "centre": request.seen,
        "normalisation": {**asdict(material.statistics), "from": subject.normalisation},
        "backbone": target.config.model.backbone,
        "pretraining_seed": None if target.run is None else target.config.train.seed,
        "seed": target.first_seed,
        "seeds": list(subject.seeds),
        "epochs": request.epochs or protocol.epochs,
        "hyperparameters": protocol.values(request),
        "encoder_hash": encoder_hash,
    }


def measure(subject: Subject, encoder: nn.Module) -> Result:
    """The figures of every seed, their mean and deviation, and those of random weights where that is quick."""
    protocol, target = PROTOCOLS[subject.request.protocol], subject.target
    outcomes: list[Outcome] = []
    for seed in subject.seeds:
        if outcomes and not protocol.seeded and not target.is_random:
            outcomes.append(outcomes[0])  # nothing in it depends on the seed
            continue
        if target.is_random and outcomes:
            encoder = load_encoder(target, subject.facts, subject.material.device, seed)
        outcomes.append(_measure_one(subject, encoder, seed, trained=True))
    accuracy = {"random" if target.is_random else "trained": summary(outcomes)}
    if protocol.beside_random and not target.is_random:
        record = own_record(target)
        facts = subject.facts if record is None else DataFacts.recorded(record)
        untrained = load_untrained(target, facts, subject.material.device)
        accuracy["random"] = summary([_measure_one(subject, untrained, 0, trained=False)])
    accuracy.setdefault("random", {})
    per_seed = [
        {"seed": seed, "accuracy": _rounded(outcome.figures), **outcome.details}
        for seed, outcome in zip(subject.seeds, outcomes, strict=True)
    ]
    shared = count_shared(subject.material.train, subject.material.test)
    return {"accuracy": accuracy, "per_seed": per_seed, "encoder_unchanged": True, "test_images_in_train": shared}


def _measure_one(subject: Subject, encoder: nn.Module, seed: int, trained: bool) -> Outcome:
    request, material = subject.request, subject.material
    needs_method = trained and request.protocol == "cluster"
    method = load_method(subject.target, subject.facts, material.device) if needs_method else None
    with unchanged(encoder):
        return PROTOCOLS[request.protocol].measure(encoder, method, material, request, seed)


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {name: mean_and_deviation([o.figures[name] for o in outcomes]) for name in outcomes[0].figures}


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in figures.items()}


# What images these are and how they come to the encoder: results that differ in it stand in files of their own.
_CONDITIONS = ("data_fingerprint", "train_images", "test_images", "image_size", "crop_min", "normalisation", "backbone")


def result_file(subject: Subject, out: Path | None, header: Result) -> Path:
    """RUN/results/PROTOCOL-DATA.json; what else was asked for is in the name, so that nothing overwrites another.

    Conditions other than the run's own are in it as a few digits of their hash.
    """
    target, request = subject.target, subject.request
    parts = [request.protocol, files.portable_name(Path(subject.source).stem)]
    if request.fraction is not None:
        parts.insert(1, f"{request.fraction:g}")
    if target.first_seed:
        parts.append(f"seed-{target.first_seed}")
    if request.seeds > 1:
        parts.append(f"{request.seeds}-seeds")
    if request.epochs is not None:
        parts.append(f"{request.epochs}-epochs")
    if request.seen != PROTOCOLS[request.protocol].centre:
        parts.append(f"centre-{request.seen:g}")
    if header["held_out"]:
        parts.append(f"held-out-{header['held_out']}")
    if request.rates:
        parts.append("rates-" + "-".join(f"{rate:g}" for rate in request.rates))
    of_run = target.run is not None and target.weights == target.run.encoder_file
    if out is not None or not of_run:
        parts.insert(0, target.label(header["encoder_hash"]))
    if out is not None or not of_run or not subject.own_conditions:
        conditions = json.dumps([header[name] for name in _CONDITIONS], sort_keys=True)
        parts.append(hashlib.sha256(conditions.encode()).hexdigest()[:8])
    folder = out or (Path("results") if target.run is None else target.run.results)
    return folder / f"{'-'.join(parts)}.json"


def stored_result(path: Path, expected: Result) -> Result | None:
    """The result on the disk if it is of the same encoder, data and values."""
    if not path.is_file():
        return None
    try:
        stored: Result = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return None  # damaged by other hands: measure again
    if not isinstance(stored, dict) or not isinstance(stored.get("accuracy"), dict):
        return None
    stored["centre"] = centre_of(stored)
    own = {key: value for key, value in expected.items() if key != "target"}  # the same run by another path is the same
    return stored if all(stored.get(key) == value for key, value in own.items()) else None


def to_json(result: Result) -> str:
    """Indented, with rows of numbers on one line each."""
    text = json.dumps(result, indent=2, allow_nan=False)
    return re.sub(r"\[\s+([-\d.,\se+null]+?)\s+\]", lambda m: f"[{' '.join(m.group(1).split())}]", text) + "\n"


TITLES = {
    "knn": "kNN top-1 accuracy",
    "linear": "linear accuracy",
    "linear-cached": "linear accuracy",
    "transfer": "transfer, linear accuracy",
    "semi": "accuracy after fine-tuning",
    "finetune": "accuracy after fine-tuning",
    "cluster": "clusters against classes",
}


def table(result: Result) -> list[str]:
    """The result as lines for a terminal."""
    accuracy, protocol = result["accuracy"], result["protocol"]
    extra = ""
    if protocol == "semi":
        labels = result["per_seed"][0]["labels"]
        extra = f", {100 * result['hyperparameters']['fraction']:g}% of the labels ({labels})"
    if result["centre"] < 1:
        extra += f", the central {100 * result['centre']:g}% of each side"
    usual = PROTOCOLS[protocol].epochs
    if result["epochs"] != usual:
        extra += f", {result['epochs']} epochs instead of the protocol's {usual}"
    judged = "held-out training images" if result.get("held_out") else "images"
    images = f"{result['train_images']} / {result['test_images']} {judged}"
    lines = [f"{TITLES[protocol]} on {Path(result['data']).name}{extra}, {result['kind']} ({images})"]
    if len(result["seeds"]) > 1:
        lines.append(f"  mean and standard deviation over {len(result['seeds'])} seeds")
    if result["test_images_in_train"] is None:
        lines.append("  note: the data are too large to look for test images among the training images")
    if result["test_images_in_train"]:
        lines.append(
            f"  note: {result['test_images_in_train']} test images are among the training images, pixel by pixel"
        )
    if any(outcome.get("converged") is False for outcome in result["per_seed"]):
        lines.append("  note: the solver stopped before it had converged")
    if protocol == "linear-cached" and not all(outcome.get("validation") for outcome in result["per_seed"]):
        lines.append("  note: every class has one image, so that the penalty is a fixed one, not chosen")
    if "trained" not in accuracy:
        width = max(10, *(len(name) for name in accuracy["random"]))
        return [*lines, *(f"  {name:>{width}}   random weights {_shown(v)}" for name, v in accuracy["random"].items())]
    what = "neighbours" if protocol == "knn" else ""
    width = max(10, *(len(name) for name in accuracy["trained"]))
    beside = bool(accuracy["random"])
    lines.append(f"  {what:>{width}}   {'this encoder':>14}" + ("   random weights     gain" if beside else ""))
    for name, value in accuracy["trained"].items():
        line = f"  {name:>{width}}   {_shown(value):>14}"
        other = accuracy["random"].get(name)
        if other is not None:
            line += f"   {_shown(other):>14}   {_mean(value) - _mean(other):+6.2f}"
        lines.append(line)
    return lines


def _shown(value: float | dict[str, float]) -> str:
    return f"{value['mean']:.2f} ± {value['std']:.2f}%" if isinstance(value, dict) else f"{value:.2f}%"


def _mean(value: float | dict[str, float]) -> float:
    return value["mean"] if isinstance(value, dict) else value
