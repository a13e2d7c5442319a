"""Result files: what was measured, where it is kept, and whether the result on the disk is the one asked for."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from carl import files
from carl.config import DataConfig
from carl.errors import UserError
from carl.evaluation.prepare import Evaluation
from carl.evaluation.results import TRAINED, UNTRAINED, centre_of
from carl.records.regular_files import read_text

Result = dict[str, Any]

LONGEST_NAME = 236  # bytes: usual file systems allow 255, and while it is written a file's name is longer

# Which images these are and how the encoder sees them. Results that differ in this are kept in separate files.
_CONDITIONS = ("data_fingerprint", "train_images", "test_images", "image_size", "crop_min", "normalisation", "backbone")


def header(evaluation: Evaluation, encoder_hash: str) -> Result:
    """What was measured. Two results with the same header are the same measurement."""
    target, request, data = evaluation.target, evaluation.request, evaluation.data
    protocol = evaluation.protocol
    return {
        "protocol": request.protocol,
        "kind": protocol.kind,
        "target": target.name,
        "weights": UNTRAINED if target.is_random else TRAINED,
        "data": evaluation.source,
        "data_fingerprint": evaluation.dataset.fingerprint,
        "train_images": len(data.train),
        "test_images": len(data.test),
        "held_out": target.config.data.held_out or None,
        "limit_by": _limited_by(target.config.data),
        "classes": data.classes,
        "class_names": list(evaluation.dataset.class_names),
        "image_size": data.image_size,
        "crop_min": data.crop_min if protocol.epochs is not None else None,
        "centre": data.centre,
        "normalisation": {**asdict(data.statistics), "from": evaluation.normalisation},
        "backbone": target.config.model.backbone,
        "pretraining_seed": None if target.run is None else target.config.train.seed,
        "seed": target.first_seed,
        "seeds": list(evaluation.seeds),
        "epochs": request.epochs or protocol.epochs,
        "hyperparameters": protocol.values(request),
        "encoder_hash": encoder_hash,
    }


def _limited_by(data: DataConfig) -> str | None:
    """How the images were chosen, if only some were; None for the first ones, as in results of older versions."""
    return data.limit_by if data.limit is not None and data.limit_by != "first" else None


def result_file(evaluation: Evaluation, header: Result) -> Path:
    """RUN/results/PROTOCOL-DATA.json. Unusual values are in the name, so that results do not overwrite each other.

    Conditions other than the run's own appear as a few digits of their hash.
    """
    target, request = evaluation.target, evaluation.request
    parts = [request.protocol, files.portable_name(Path(evaluation.source).stem), *_asked_for(evaluation, header)]
    if request.fraction is not None:
        parts.insert(1, f"{request.fraction:g}")
    of_run = target.run is not None and target.weights == target.run.encoder_file
    if request.out is not None or not of_run:
        parts.insert(0, target.label(header["encoder_hash"]))
    if request.out is not None or not of_run or not evaluation.own_conditions:
        conditions = json.dumps([header[name] for name in _CONDITIONS], sort_keys=True)
        parts.append(hashlib.sha256(conditions.encode()).hexdigest()[:8])
    folder = request.out or (Path("results") if target.run is None else target.run.results)
    return folder / _of_possible_length(f"{'-'.join(parts)}.json")


def _of_possible_length(name: str) -> str:
    """The name, or if no file can be called so, its beginning and a few digits of its hash."""
    whole = name.encode()
    if len(whole) <= LONGEST_NAME:
        return name
    digits = f"-{hashlib.sha256(whole).hexdigest()[:8]}.json"
    return whole[: LONGEST_NAME - len(digits)].decode(errors="ignore") + digits


def check_writable(path: Path) -> None:
    """Refuse to measure what could not be kept. Nothing is written, not even a folder that is still missing."""
    places = (path.parent, *path.parent.absolute().parents)
    folder = next(place for place in places if os.path.lexists(place))
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder, and results go into one; choose another --out")
    rights_in_effect = os.access in os.supports_effective_ids  # else capabilities, as in a container, would not count
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=rights_in_effect):
        raise UserError(
            f"the result could not be kept, {path} cannot be written: {folder} is read-only; choose another folder "
            "with --out, or change the rights of this one"
        )


def _asked_for(evaluation: Evaluation, header: Result) -> list[str]:
    """Values that are not the protocol's usual ones, in words for a file name."""
    request, protocol = evaluation.request, evaluation.protocol
    words = []
    if evaluation.target.first_seed:
        words.append(f"seed-{evaluation.target.first_seed}")
    if request.seeds > 1:
        words.append(f"{request.seeds}-seeds")
    if request.epochs is not None:
        words.append(f"{request.epochs}-epochs")
    if protocol.part_seen(request) != protocol.centre:
        words.append(f"centre-{protocol.part_seen(request):g}")
    if header["held_out"]:
        words.append(f"held-out-{header['held_out']}")
    if request.rates:
        words.append("rates-" + "-".join(f"{rate:g}" for rate in request.rates))
    return words


def stored_result(path: Path, expected: Result) -> Result | None:
    """The result on the disk if encoder, data and values are the same."""
    if not path.is_file():
        return None
    try:
        stored: Result = json.loads(read_text(path))
    except (ValueError, RecursionError):
        return None  # damaged: measure again
    if not isinstance(stored, dict) or not isinstance(stored.get("accuracy"), dict):
        return None
    stored["centre"] = centre_of(stored)
    own = {key: value for key, value in expected.items() if key != "target"}  # the same run by another path is the same
    return stored if all(stored.get(key) == value for key, value in own.items()) else None


def to_json(result: Result) -> str:
    """Indented, with rows of numbers on one line each."""
    text = json.dumps(result, indent=2, allow_nan=False)
    return re.sub(r"\[\s+([-\d.,\se+null]+?)\s+\]", lambda m: f"[{' '.join(m.group(1).split())}]", text) + "\n"
