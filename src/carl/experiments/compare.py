"""Methods side by side on the same data and budget: what they learn, how fast, and in how much memory."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from carl import files
from carl.config import Layer, merge
from carl.errors import UserError
from carl.experiments.jobs import Job, Measure, Outcome, read_outcome
from carl.experiments.outputs import figure_of, random_of
from carl.experiments.runner import run_jobs
from carl.methods import METHODS, find_method

# What two runs of a comparison may differ in without it being a value of the method: said in no table.
COMMON = ("data", "train", "probe", "log", "model")


def compare(layer: Layer, methods: Sequence[str], seeds: int, out: Path | None, say: Callable[[str], None]) -> int:
    """Train each method (those that are finished are not trained again), print and write the table."""
    if seeds < 1:
        raise UserError(f"--seeds {seeds} is not a number of repetitions; use 1 or more")
    names = list(methods) or list(METHODS)
    for name in names:
        find_method(name)
    source = str(layer["data"]["source"])
    root = out or Path("runs") / f"compare-{Path(source).stem}"
    first = int(layer.get("train", {}).get("seed", 0))
    jobs = {(name, seed): _job(name, seed, layer) for name in names for seed in range(first, first + seeds)}
    failed = run_jobs(list(jobs.values()), root, say, own_process=True)
    found = {key: outcome for key, job in jobs.items() if (outcome := read_outcome(root, job))}
    rows = [row(name, [o for (n, _), o in found.items() if n == name]) for name in names]
    table = markdown(source, rows)
    files.write_json(root / "comparison.json", {"data": source, "machine": machine(), "rows": rows})
    files.write_text(root / "comparison.md", table)
    say(table)
    say(f"written to {root / 'comparison.md'} and {root / 'comparison.json'}")
    return 1 if failed else 0


def _job(name: str, seed: int, layer: Layer) -> Job:
    given = merge([layer, {"method": {"name": name}, "train": {"seed": seed}, "log": {"report": False}}])
    return Job(f"{name}-seed-{seed}", json.loads(json.dumps(given)), (Measure("knn"), Measure("linear-cached")))


def row(name: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """A method's line: means over seeds, and the values that its preset for this data changes from the paper's."""
    done = [outcome for outcome in outcomes if outcome["state"] == "done"]
    if not done:
        return {"method": name, "state": "failed", "reason": outcomes[0].get("reason", "") if outcomes else ""}

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return round(sum(known) / len(known), 2) if known else None

    config = done[0]["config"]
    knn = [figure_of(o, "knn") for o in done]
    return {
        "method": name,
        "state": "done",
        "seeds": len(done),
        "knn": mean(knn),
        "knn_all": knn,
        "knn_random": mean([random_of(o, "knn") for o in done]),
        "linear": mean([figure_of(o, "linear-cached") for o in done]),
        "linear_random": mean([random_of(o, "linear-cached") for o in done]),
        "images_per_second": mean([o["images_per_second"] for o in done]),
        "peak_memory_mb": mean(
            [None if o["peak_memory_bytes"] is None else o["peak_memory_bytes"] / 1e6 for o in done]
        ),
        "verdict": done[0]["verdict"],
        "epochs": config["train"]["epochs"],
        "batch_size": config["train"]["batch_size"],
        "images": done[0]["images"],
        "preset": config["method"]["preset"],
        "values": changed_values(name, done[0]),
        "made": done[0]["made"],
    }


def changed_values(name: str, outcome: Outcome) -> dict[str, Any]:
    """Values of method, views and optimiser that differ from the method's `paper` preset for the same data."""
    from carl.config import resolve
    from carl.methods import DataFacts

    config = outcome["config"]
    method = find_method(name)
    facts = DataFacts("", outcome["images"] or 10_000, 3, config["data"].get("image_size", 32), 10)
    paper = resolve([{"data": {"source": "x"}}, method.preset("paper", facts)], method.Options)
    usual = paper.model_dump(mode="json")
    return {
        f"{section}.{key}": value
        for section in ("method", "optim")
        for key, value in config[section].items()
        if key not in ("name", "preset") and usual[section].get(key) != value and usual[section].get(key) is not None
    } | ({"optim.name": config["optim"]["name"]} if config["optim"]["name"] != usual["optim"]["name"] else {})


def markdown(source: str, rows: Sequence[dict[str, Any]]) -> str:
    done = [r for r in rows if r["state"] == "done"]
    lines = [f"Methods on {Path(source).name}", ""]
    if done:
        first = done[0]
        lines += [
            f"{first['images']} images, {first['epochs']} epochs, batch {first['batch_size']}, "
            f"{first['seeds']} seed(s). "
            "kNN: k=20, offline, all test images. Linear: cached features. Gain is over the same encoder with random "
            f"weights. {machine()}, {time.strftime('%Y-%m-%d')}.",
            "",
        ]
    lines.append("| method | kNN % | gain | linear % | gain | images/s | peak MB | values that are not the paper's |")
    lines.append("|---|---|---|---|---|---|---|---|")
    for r in rows:
        if r["state"] != "done":
            lines.append(f"| {r['method']} | failed: {r['reason']} | | | | | | |")
            continue
        values = ", ".join(f"{key}={value}" for key, value in r["values"].items())
        lines.append(
            f"| {r['method']} | {_number(r['knn'])} | {_gain(r['knn'], r['knn_random'])} | {_number(r['linear'])} "
            f"| {_gain(r['linear'], r['linear_random'])} | {_number(r['images_per_second'], 0)} "
            f"| {_number(r['peak_memory_mb'], 0)} | {values} |"
        )
    return "\n".join(lines) + "\n"


def _number(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _gain(value: float | None, other: float | None) -> str:
    return "" if value is None or other is None else f"{value - other:+.1f}"


def machine() -> str:
    import os

    import torch

    where = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return f"{where}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
