"""Evaluation by a named protocol, from the user's request to a result file."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from carl import distributed, files
from carl.data.facts import DataFacts
from carl.device import hardware
from carl.errors import UserError, printable
from carl.evaluation.evaluation_data import count_shared
from carl.evaluation.intervals import Judged, difference, interval, packed
from carl.evaluation.prepare import Evaluation, prepare
from carl.evaluation.protocols import EvaluationRequest, Outcome, check_request, each_fraction
from carl.evaluation.result_files import Result, check_writable, header, result_file, stored_result, to_json
from carl.evaluation.results import AT_START, GAINS, TRAINED, UNTRAINED
from carl.evaluation.table import table
from carl.evaluation.target import load_encoder, load_method, load_start, load_untrained, own_record, unchanged
from carl.models.weights import weights_hash
from carl.records.environment import machine


class NotKeptError(UserError):
    """A result was measured and could not be written."""

    def __init__(self, result: Result, path: Path, reason: str) -> None:
        super().__init__(f"the result above is not kept, {path} cannot be written: {reason}; measure again with --out")
        self.result = result


def evaluate_and_show(request: EvaluationRequest) -> None:
    """`carl eval`: a table, or one for each part of the labels that the protocol measures."""
    for part in each_fraction(request):
        try:
            result = evaluate(part)
        except NotKeptError as error:
            _show(error.result)
            raise
        _show(result)
    distributed.stop()


def _show(result: Result) -> None:
    if distributed.is_main():
        for line in table(result):
            print(printable(line), flush=True)


def evaluate(request: EvaluationRequest) -> Result:
    """The result for a run directory, a file of weights or `random`; the one on the disk if it is still valid."""
    check_request(request)
    evaluation = prepare(request)
    target, device = evaluation.target, evaluation.data.device
    encoder = load_encoder(target, evaluation.facts, device, target.first_seed)
    result: Result = json.loads(json.dumps(header(evaluation, weights_hash(encoder))))  # as it reads from the disk
    path = result_file(evaluation, result)
    if not request.force:
        stored = distributed.agreed(json.dumps(stored_result(path, result)))  # all measure, or none
        if stored != "null":
            return dict(json.loads(stored))
    if distributed.is_main():
        check_writable(path)
    start = time.monotonic()
    # Features, votes, k-means and training share their work among the processes themselves; the rest is quick.
    with distributed.computing_alone():
        result |= measure(evaluation, encoder)
    result |= {"seconds": round(time.monotonic() - start, 1), "made": time.strftime("%Y-%m-%d %H:%M:%S")}
    result["machine"] = machine(hardware(device))
    if distributed.is_main():
        try:
            files.write_text(path, to_json(result))
        except OSError as error:  # the disk has become full meanwhile
            raise NotKeptError(result, path, str(error.strerror)) from None
    return result


def measure(evaluation: Evaluation, encoder: nn.Module) -> Result:
    """The figures of every seed, their mean and deviation.

    If that is quick, also those of random weights, and those of the encoder that the run started from.
    """
    target, data = evaluation.target, evaluation.data
    outcomes: list[Outcome] = []
    for seed in evaluation.seeds:
        if outcomes and not evaluation.protocol.seeded and not target.is_random:
            outcomes.append(outcomes[0])  # nothing in it depends on the seed
            continue
        if target.is_random and outcomes:
            encoder = load_encoder(target, evaluation.facts, data.device, seed)
        outcomes.append(_measure_one(evaluation, encoder, seed, trained=True))
    judged = {UNTRAINED if target.is_random else TRAINED: outcomes}
    if evaluation.protocol.beside_random and not target.is_random:
        record = own_record(target)
        facts = evaluation.facts if record is None else DataFacts.recorded(record)
        untrained = load_untrained(target, facts, data.device)
        judged[UNTRAINED] = [_measure_one(evaluation, untrained, 0, trained=False)]
        start = None if target.run is None else load_start(target.run, target.config, evaluation.facts, data.device)
        if start is not None:
            judged[AT_START] = [_measure_one(evaluation, start, 0, trained=False)]
    accuracy = {which: summary(found) for which, found in judged.items()}
    accuracy.setdefault(UNTRAINED, {})
    per_seed = [
        {"seed": seed, "accuracy": _rounded(outcome.figures), **outcome.details}
        for seed, outcome in zip(evaluation.seeds, outcomes, strict=True)
    ]
    shared = count_shared(data.train, data.test)
    return {
        "accuracy": accuracy,
        **with_intervals(judged),
        "per_seed": per_seed,
        "encoder_unchanged": True,
        "test_images_in_train": shared,
    }


def with_intervals(judged: Mapping[str, Sequence[Outcome]]) -> Result:
    """95% intervals of the figures that are accuracies, and for each seed which test images were right."""
    found = {which: correct_by_figure(outcomes) for which, outcomes in judged.items()}
    intervals: Result = {
        which: {name: interval(one).ends for name, one in figures.items()} for which, figures in found.items()
    }
    for gain, other in GAINS.items():
        if TRAINED in found and other in found:
            both = found[TRAINED].keys() & found[other].keys()
            gains = {name: difference(found[TRAINED][name], found[other][name]) for name in both}
            intervals[gain] = {name: gains[name].ends for name in found[TRAINED] if name in gains}
    correct = {
        which: {name: [packed(row) for row in one.right] for name, one in figures.items()}
        for which, figures in found.items()
    }
    return {"intervals": intervals, "correct": correct}


def correct_by_figure(outcomes: Sequence[Outcome]) -> dict[str, Judged]:
    """Per figure that is an accuracy, which test images were right with which seed."""
    return {name: Judged(np.stack([o.right[name] for o in outcomes]), "here") for name in outcomes[0].right}


def _measure_one(evaluation: Evaluation, encoder: nn.Module, seed: int, trained: bool) -> Outcome:
    protocol, data = evaluation.protocol, evaluation.data
    wanted = trained and protocol.needs_method
    method = load_method(evaluation.target, evaluation.facts, data.device) if wanted else None
    with unchanged(encoder):
        return protocol.measure(encoder, method, data, evaluation.request, seed)


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {name: mean_and_deviation([o.figures[name] for o in outcomes]) for name in outcomes[0].figures}


def mean_and_deviation(values: list[float]) -> float | dict[str, float]:
    """The value of one seed, or mean and standard deviation (of a sample) over several."""
    if len(values) == 1:
        return round(values[0], 2)
    return {"mean": round(float(np.mean(values)), 2), "std": round(float(np.std(values, ddof=1)), 2)}


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in figures.items()}
