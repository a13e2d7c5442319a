"""Long runs beside the paper: measures the encoders that they kept, and writes the table and the learning curves.

    python -m benchmarks.paper_runs runs/carl-paper runs/simclr-paper --out results/reproduction/paper
    python -m benchmarks.paper_runs runs/carl-paper --protocols linear --transfer cifar100-train.parquet --out ...

Asks `carl eval` about every encoder of RUN/encoders (`train.keep_epochs`), or about those of `--epochs`. Results lie in
RUN/results, so that nothing is measured twice. OUT/RUN.json holds probes and results of a run. The table and the figure
are made from all such files in OUT, also from runs that are not given again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from carl import files
from carl.config import read_toml
from carl.evaluation.evaluate import evaluate
from carl.evaluation.protocols import PROTOCOLS
from carl.evaluation.protocols.base import EvaluationRequest
from carl.records.metrics import end_of, read_records
from carl.records.run_directory import RunDirectory

Record = dict[str, Any]

# Table 2 of the paper, CIFAR-10: linear accuracy after 100 and 200 epochs; table 3: CIFAR-10 to CIFAR-100.
PAPER = {
    "carl-paper": {"linear": {100: "73.39 ± 0.31", 200: "78.94 ± 0.52"}, "transfer": {200: "43.47"}},
    "simclr-paper": {"linear": {100: "72.64", 200: "75.41"}},
}
COLUMNS = ("linear", "linear-cached", "knn", "transfer")


def measure(
    run: RunDirectory, protocols: Sequence[str], transfer: str | None, epochs: Sequence[int] | None
) -> dict[str, Record]:
    """By epoch and protocol, the results of `carl eval`; transfer only of the last encoder."""
    kept = {int(file.stem[-4:]): file for file in sorted(run.kept_encoders.glob("epoch-????.safetensors"))}
    if epochs is not None:
        kept = {epoch: file for epoch, file in kept.items() if epoch in epochs}
    found: dict[str, Record] = {}
    for epoch, file in kept.items():
        requests = [EvaluationRequest(str(file), protocol=protocol) for protocol in protocols]
        if transfer is not None and epoch == max(kept):
            requests.append(EvaluationRequest(str(file), protocol="transfer", data=transfer))
        for request in requests:
            result = evaluate(request)
            found.setdefault(str(epoch), {})[request.protocol] = _without_images(result)
            print(f"{run.path.name}, epoch {epoch}, {request.protocol}: {_accuracy(result)}", flush=True)
    return found


def _without_images(result: Record) -> Record:
    return {key: value for key, value in result.items() if key not in ("per_seed", "right")}


def _without_folders(value: Any) -> Any:
    """The same with absolute paths cut to the names of their files: where they were on this machine helps nobody."""
    if isinstance(value, dict):
        return {key: _without_folders(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_folders(one) for one in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def record_of(
    run: RunDirectory, protocols: Sequence[str], transfer: str | None, epochs: Sequence[int] | None, before: Record
) -> Record:
    """What FOLDER/RUN.json says: configuration, machine, the probes' curve and results, old and new."""
    records = read_records(run.metrics_file)
    probes = [record for record in records if record["kind"] == "probe" and "knn" in record]
    results: dict[str, Record] = before.get("results", {})
    for epoch, found in measure(run, protocols, transfer, epochs).items():
        results[epoch] = results.get(epoch, {}) | found
    return {
        "run": run.path.name,
        "config": read_toml(run.config_file),
        "environment": json.loads(run.environment_file.read_text()),
        "epochs_done": max((int(record["epoch"]) for record in records), default=0),
        "finished": end_of(records) is not None,
        "probes": [[record["epoch"], round(record["knn"], 2)] for record in probes],
        "results": results,
    }


def table(runs: Sequence[Record]) -> str:
    """One row per run and epoch, the paper's number beside ours."""
    head = ["run", "epoch", "seeds", "precision", "linear: the paper's / ours", "linear-cached", "kNN"]
    rows = [[*head, "transfer to CIFAR-100: the paper's / ours"]]
    for run in runs:
        for epoch in sorted(map(int, run["results"])):
            found = run["results"][str(epoch)]
            stated = PAPER.get(run["run"], {})
            paper = {name: stated.get(name, {}).get(epoch, "-") for name in COLUMNS}
            ours = {name: f"{_accuracy(found[name]):.2f}" if name in found else "-" for name in COLUMNS}
            beside = {name: f"{paper[name]} / {ours[name]}" for name in COLUMNS}
            about = [
                run["run"],
                f"{epoch} of {run['config']['train']['epochs']}",
                "1",
                run["config"]["train"]["precision"],
            ]
            rows.append([*about, beside["linear"], ours["linear-cached"], ours["knn"], beside["transfer"]])
    rows.insert(1, ["---"] * len(rows[0]))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _accuracy(result: Record) -> float:
    return float(result["accuracy"]["trained"][PROTOCOLS[result["protocol"]].headline])


def curves(runs: Sequence[Record]) -> Figure:
    """kNN probes and linear accuracy over epochs."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for run in runs:
        left.plot(*zip(*run["probes"], strict=True), marker=".", label=run["run"])
        for protocol, style in (("linear", "-"), ("linear-cached", "--")):
            points = [(int(e), _accuracy(found[protocol])) for e, found in run["results"].items() if protocol in found]
            if points:
                right.plot(*zip(*sorted(points), strict=True), style, marker="o", label=f"{run['run']}, {protocol}")
    for panel, title in ((left, "kNN probe (%)"), (right, "linear classifier (%)")):
        panel.set_xlabel("epoch")
        panel.set_title(title, fontsize=10)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize=8, frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--protocols", nargs="*", default=["knn", "linear-cached"])
    parser.add_argument("--epochs", nargs="*", type=int, help="only the encoders of these epochs (unset: all kept)")
    parser.add_argument("--transfer", help="CIFAR-100, to carry the last encoder over to")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    for path in given.runs:
        file = given.out / f"{path.name}.json"
        before = json.loads(file.read_text()) if file.is_file() else {}
        record = record_of(RunDirectory(path), given.protocols, given.transfer, given.epochs, before)
        files.write_json(file, _without_folders(record))
    known = [json.loads(file.read_text()) for file in sorted(given.out.glob("*.json"))]
    files.write_text(given.out / "table.md", table(known))
    with files.atomic_writer(given.out / "curves.png") as file:
        curves(known).savefig(file, format="png", dpi=120)


if __name__ == "__main__":
    main()
