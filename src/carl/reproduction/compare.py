"""Methods side by side on the same data and budget: what they learn, how fast, and in how much memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carl import files
from carl.config import Layer, merge, resolve
from carl.data.facts import DataFacts
from carl.errors import UserError
from carl.evaluation.protocols import PROTOCOLS
from carl.methods import METHODS, find_method
from carl.methods.build import with_absolute_paths
from carl.reproduction.cells import figure_of, random_figure_of
from carl.reproduction.jobs import Job, Measure, Outcome, machine_in_words, read_outcome
from carl.reproduction.runner import run_jobs
from carl.training.plan import PretrainRequest, plan


@dataclass(frozen=True)
class CompareRequest:
    """What `carl compare` was asked to do."""

    layer: Layer  # values for all methods
    methods: tuple[str, ...] = ()  # all of them if empty
    seeds: int = 1  # runs of each method
    out: Path | None = None


def compare(request: CompareRequest, say: Callable[[str], None]) -> int:
    """Train each method that is not finished yet, print the table and write it; the exit code."""
    if request.seeds < 1:
        raise UserError(f"--seeds {request.seeds} is not a number of repetitions; use 1 or more")
    names = list(dict.fromkeys(request.methods)) or list(METHODS)
    for name in names:
        find_method(name)
    layer = with_absolute_paths(request.layer)
    _check_start(layer, names)
    source = str(layer["data"]["source"])
    root = request.out or Path("runs") / f"compare-{Path(source).stem}"
    first = int(layer.get("train", {}).get("seed", 0))
    jobs = {(name, seed): _job(name, seed, layer) for name in names for seed in range(first, first + request.seeds)}
    failed = run_jobs(list(jobs.values()), root, say, own_process=True)
    rows = [_read_row(name, jobs, failed, root, request.seeds) for name in names]
    table = markdown(source, rows)
    files.write_json(root / "comparison.json", {"data": source, "rows": rows})
    files.write_text(root / "comparison.md", table)
    say(table)
    say(f"written to {root / 'comparison.md'} and {root / 'comparison.json'}")
    return 1 if failed else 0


def _read_row(
    name: str, jobs: Mapping[tuple[str, int], Job], failed: Mapping[str, str], root: Path, asked: int
) -> dict[str, Any]:
    own = [job for (method, _), job in jobs.items() if method == name]
    reason = next((failed[job.name] for job in reversed(own) if job.name in failed), "")
    return method_row(name, [outcome for job in own if (outcome := read_outcome(root, job))], asked, reason)


def _check_start(layer: Layer, names: Sequence[str]) -> None:
    """Raise an error that stops every method before anything is written; one that stops some is left to the table."""
    errors = []
    for name in names:
        try:
            plan(PretrainRequest(merge([layer, {"method": {"name": name}}])))
        except UserError as error:
            errors.append(error)
        else:
            return
    raise errors[0]


def _job(name: str, seed: int, layer: Layer) -> Job:
    given = merge([layer, {"method": {"name": name}, "train": {"seed": seed}, "log": {"report": False}}])
    return Job(f"{name}-seed-{seed}", json.loads(json.dumps(given)), (Measure("knn"), Measure("linear-cached")))


def method_row(name: str, outcomes: Sequence[Outcome], asked: int, reason: str) -> dict[str, Any]:
    """A method's line: means over seeds, and the values that differ from the paper's."""
    done = [outcome for outcome in outcomes if outcome["state"] == "done"]
    if not done:
        return {"method": name, "state": "failed", "reason": reason}

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return round(sum(known) / len(known), 2) if known else None

    config = done[0]["config"]
    knn = [figure_of(o, "knn") for o in done]
    return {
        "method": name,
        "state": "done",
        "seeds": len(done),
        "seeds_asked": asked,
        "knn": mean(knn),
        "knn_all": knn,
        "knn_random": mean([random_figure_of(o, "knn") for o in done]),
        "linear": mean([figure_of(o, "linear-cached") for o in done]),
        "linear_random": mean([random_figure_of(o, "linear-cached") for o in done]),
        "images_per_second": mean([o["images_per_second"] for o in done]),
        "peak_memory_mb": mean(
            [None if o["peak_memory_bytes"] is None else o["peak_memory_bytes"] / 1e6 for o in done]
        ),
        "verdict": ", ".join(dict.fromkeys(str(o["verdict"]) for o in done if o["verdict"])),
        "image_size": config["data"]["image_size"],
        "epochs": config["train"]["epochs"],
        "batch_size": config["train"]["batch_size"],
        "images": done[0]["images"],
        "preset": config["method"]["preset"],
        "values": changed_values(name, done[0]),
        "machine": ", or ".join(dict.fromkeys(machine_in_words(o["machine"]) for o in done)),
        "made": max(o["made"] for o in done),
    }


def changed_values(name: str, outcome: Outcome) -> dict[str, Any]:
    """Values of method, views and optimiser that differ from the method's `paper` preset for the same data."""
    method = find_method(name)
    config = resolve([outcome["config"]], method.Options).model_dump(mode="json")  # with values newer than the outcome
    enough = max(outcome["images"], 10**8)  # so that no value of the paper is cut to fit the data
    facts = DataFacts(outcome["data"], enough, 3, config["data"]["image_size"], outcome["classes"])
    paper = resolve([{"data": {"source": "x"}}, method.preset("paper", facts)], method.Options)
    usual = method.completed(paper).model_dump(mode="json")
    return {
        f"{section}.{key}": value
        for section in ("method", "views", "optim")
        for key, value in config[section].items()
        if f"{section}.{key}" not in ("method.name", "method.preset") and usual[section].get(key) != value
    }


def shared_values(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The changed values that all methods share; the caption names them once."""
    first = rows[0]["values"] if len(rows) > 1 else {}
    return {key: value for key, value in first.items() if all(r["values"].get(key) == value for r in rows)}


def markdown(source: str, rows: Sequence[dict[str, Any]]) -> str:
    done = [r for r in rows if r["state"] == "done"]
    shared = shared_values(done)
    lines = [f"Methods on {Path(source).name}", ""]
    if done:
        first = done[0]
        machines = "; ".join(dict.fromkeys(r["machine"] for r in done))
        dates = " to ".join(dict.fromkeys((min(r["made"] for r in done), max(r["made"] for r in done))))
        lines += [
            f"{first['images']} images of {first['image_size']} px, {first['epochs']} epochs, batch "
            f"{first['batch_size']}. "
            "kNN: k=20, offline, all test images. Linear: cached features of the central "
            f"{PROTOCOLS['linear-cached'].centre:.1%} of each side. Gain is over the same encoder with random "
            f"weights. Images/s: all of the training except its probes. {machines}, {dates}.",
            "",
        ]
    if shared:
        lines += [f"Not the paper's, and the same for all: {_listed(shared)}.", ""]
    heads = ("method", "seeds", "kNN %", "gain", "linear %", "gain", "images/s", "peak MB", "health")
    lines.append(f"| {' | '.join(heads)} | values that are not the paper's |")
    lines.append("|---" * (len(heads) + 1) + "|")
    for r in rows:
        if r["state"] != "done":
            lines.append(f"| {r['method']} | 0 | failed: {r['reason']} | | | | | | | |")
            continue
        values = _listed({key: value for key, value in r["values"].items() if key not in shared})
        seeds = f"{r['seeds']}" + (f" of {r['seeds_asked']}" if r["seeds"] < r["seeds_asked"] else "")
        lines.append(
            f"| {r['method']} | {seeds} | {_number(r['knn'])} | {_gain(r['knn'], r['knn_random'])} "
            f"| {_number(r['linear'])} | {_gain(r['linear'], r['linear_random'])} "
            f"| {_number(r['images_per_second'], 0)} | {_number(r['peak_memory_mb'], 0)} | {r['verdict']} | {values} |"
        )
    return "\n".join(lines) + "\n"


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _number(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _gain(value: float | None, other: float | None) -> str:
    return "" if value is None or other is None else f"{value - other:+.1f}"
