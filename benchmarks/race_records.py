"""The table of records of `benchmarks.race`, from the outcomes in results/race/jobs/."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from carl import files
from carl.reproduction.jobs import Outcome, machine_in_words

OVER = 1.02  # times the budget: more is no record
COLUMNS = (
    "entrant", "seeds", "linear, cached", "kNN, k = 20", "budget", "used", "curve: kNN at epoch", "machine", "date",
    "command",
)  # fmt: skip


def write_records(results: Path) -> None:
    """Write records.md: one table per class and judge, the best kNN first."""
    kept = [path for path in sorted((results / "jobs").glob("*.json")) if not path.name.startswith("study--")]
    outcomes = [json.loads(path.read_text()) for path in kept]
    files.write_text(results / "records.md", tables(outcomes))


def tables(outcomes: Sequence[Outcome]) -> str:
    groups: dict[tuple[str, ...], dict[str, list[Outcome]]] = {}
    for outcome in outcomes:
        *track, entrant, _ = outcome["name"].split("/")
        groups.setdefault(tuple(track), {}).setdefault(entrant, []).append(outcome)
    text = ["# Records of the race\n", "Written by `python -m benchmarks.race --tables`.\n"]
    for track, found in sorted(groups.items()):
        stem, images, budget, judge = track
        title = f"{stem.replace('-', ' ')}, {int(images.partition('-')[0]):,} images, {budget.replace('-', ' ')}"
        text.append(f"## {title}, judged on {'test' if judge == 'test' else 'held-out training'} images\n")
        rows = [row(entrant, each, track) for entrant, each in found.items()]
        rows.sort(key=lambda one: -float(one[3].split()[0]))
        text.append("\n".join([_line(COLUMNS), "|---" * len(COLUMNS) + "|", *map(_line, rows)]) + "\n")
    return "\n".join(text)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def row(entrant: str, outcomes: Sequence[Outcome], track: Sequence[str]) -> tuple[str, ...]:
    stem, images, budget, judge = track
    amount, unit = budget.split("-")[:2]
    used = [outcome["race"]["seconds"] / 60 for outcome in outcomes if "race" in outcome]
    over = bool(used) and max(used) > OVER * float(amount)
    command = f"python -m benchmarks.race --{unit} {amount} --method {entrant} --images {images.partition('-')[0]}"
    command += f" --stem {stem.partition('-')[0]} --judge {judge}"
    last = outcomes[-1]
    return (
        entrant,
        str(len(outcomes)),
        mean_in_words([accuracy(one, "linear-cached", "top-1") for one in outcomes]),
        mean_in_words([accuracy(one, "knn", "20") for one in outcomes]),
        f"{amount} {unit}",
        "all" if not used else f"{max(used):.1f} minutes{', over: no record' if over else ''}",
        curve(outcomes),
        machine_in_words(last["machine"]),
        last["made"],
        f"`{command}`",
    )


def accuracy(outcome: Outcome, measure: str, name: str) -> float:
    found: Mapping[str, Any] = outcome["measures"][measure]["accuracy"]
    return float(found["trained"][name])


def curve(outcomes: Sequence[Outcome]) -> str:
    """kNN after the epochs whose encoders were kept, mean over the seeds that have them."""
    points: dict[int, list[float]] = {}
    for outcome in outcomes:
        for key, measure in outcome["measures"].items():
            if measure.get("pretraining_epochs"):
                points.setdefault(measure["pretraining_epochs"], []).append(accuracy(outcome, key, "20"))
    return ", ".join(f"{epoch}: {statistics.mean(values):.1f}" for epoch, values in sorted(points.items()))


def mean_in_words(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"
