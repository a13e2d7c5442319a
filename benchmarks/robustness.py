"""The study behind CARL's `robust` preset: its choice, the final comparison, and where it must not break.

    python -m benchmarks.robustness PART... --data-root DIR [--runs DIR] [--shard 1/2]

rates, ablations: 10 epochs of 10,000 images of CIFAR-10, judged on 5,000 held-out training images; the rate of both
methods, and one value of `robust` changed at a time.
final: 20 epochs, three seeds, test images: `robust`, and SimCLR with its best rate, at CARL's temperature too. The
`paper` presets of both, on the same images and as long, are runs of `carl reproduce linear --scale cpu`.
grid: K by batch size, 5 epochs. batch: batch 64 and 256 at K = 1000, 20 epochs. small: 2,000 images, and `shapes`.

Runs are resumed, and those that are done are left alone. Outcomes and tables go to results/robustness/, pictures to
docs/images/; with `--tables` nothing is run, and what is known is written again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from carl import files
from carl.config import Layer, merge
from carl.errors import UserError
from carl.methods import carl
from carl.methods.base import SHARED
from carl.reproduction.jobs import Job, Measure, Outcome, adopt_outcomes, keep_outcome, read_outcome
from carl.reproduction.runner import Shard, run_jobs

ROOT = Path(__file__).parent.parent
RESULTS, PICTURES = ROOT / "results" / "robustness", ROOT / "docs" / "images"
MEASURES = (Measure("linear-cached"), Measure("knn"))
IMAGES, HELD_OUT, BATCH = 10_000, 5_000, 256
# With its values, so that a run of other values is another run. Without those that were everyone's default when the
# outcomes in results/ were made, such as joint targets: they do not name them (their complete configuration does).
ROBUST: Layer = {
    "method": {
        **{key: value for key, value in carl.ROBUST["method"].items() if key != "targets"},
        "name": "carl",
        "preset": "robust",
    },
    "optim": {**{key: SHARED["optim"][key] for key in ("name", "lr", "scale_lr")}, **carl.ROBUST["optim"]},
    "views": SHARED["views"],
}
SIMCLR: Layer = {
    "method": {"name": "simclr", "preset": "paper", "head_norm": True},
    "views": SHARED["views"],
}


@dataclass(frozen=True)
class Row:
    """A line of a table: what is changed, in words and as values; a job a seed."""

    words: str
    layer: Layer
    seeds: int = 1

    def jobs(self, part: str, common: Layer) -> list[Job]:
        return [_job(f"{part}/{_slug(self.words)}/seed-{seed}", self.layer, common, seed) for seed in range(self.seeds)]


@dataclass(frozen=True)
class Part:
    """Rows that share data, length and what is said of them."""

    name: str
    title: str
    common: Layer
    rows: tuple[Row, ...]
    random_seeds: int = 1

    def jobs(self) -> list[Job]:
        trained = [job for row in self.rows for job in row.jobs(self.name, self.common)]
        return [*trained, *self.untrained()]

    def untrained(self) -> list[Job]:
        data = self.common["data"]
        return [
            Job(f"{self.name}/random/seed-{seed}", {"data": data, "train": {"seed": seed}}, MEASURES)
            for seed in range(self.random_seeds)
        ]


def _job(name: str, layer: Layer, common: Layer, seed: int) -> Job:
    whole = merge([common, layer, {"train": {"seed": seed, "keep_epochs": []}}])
    cost = whole["data"].get("limit", IMAGES) * whole["train"]["epochs"]
    return Job(name, whole, MEASURES, cost)


def _slug(words: str) -> str:
    kept = "".join(c if c.isalnum() or c in ".-" else " " for c in words.lower())
    return "-".join(kept.split())


def _cifar(epochs: int, **data: Any) -> Layer:
    """The health is that of all training images, after the last epoch."""
    return {
        "data": {"source": "cifar10", "limit": IMAGES, "limit_by": "first", **data},
        "train": {"epochs": epochs, "batch_size": BATCH},
        "probe": {"every": epochs, "images": data.get("limit", IMAGES)},
        "log": {"report": False},
    }


def _robust(section: str = "method", **values: Any) -> Layer:
    return merge([ROBUST, {section: values}] if values else [ROBUST])


def _simclr(rate: float, **method: Any) -> Layer:
    return merge([SIMCLR, {"method": method, "optim": {"lr": rate}}])


RATES = Part(
    "rates",
    f"Rates: 10 epochs of {IMAGES:,} images of CIFAR-10, judged on {HELD_OUT:,} held-out training images, one seed",
    _cifar(10, held_out=HELD_OUT),
    (
        *(Row(f"SimCLR, rate {rate:g}", _simclr(rate)) for rate in (0.03, 0.12, 0.06)),
        *(Row(f"robust CARL, rate {rate:g}", _robust("optim", lr=rate)) for rate in (0.03, 0.12, 0.06)),
    ),
)
ABLATIONS = Part(
    "ablations",
    f"One value changed at a time: 10 epochs of {IMAGES:,} images of CIFAR-10, judged on {HELD_OUT:,} held-out "
    "training images, one seed",
    _cifar(10, held_out=HELD_OUT),
    (
        Row("robust CARL", _robust()),
        Row("one part", _robust(parts=1)),
        Row("8 parts", _robust(parts=8)),
        Row("not relative to chance, lambda from the threshold", _robust(beyond_chance=False)),
        Row("lambda 0", _robust(prior_start=0.0, prior_end=0.0)),
        Row("embedding of unit length, no batch norm", _robust(embedding_norm="l2")),
        Row("prototypes of any length", _robust(prototype_norm=False, prototype_scale=128**-0.5)),
        Row("prototypes turn ten times faster", _robust(prototype_scale=0.08)),
        Row("prototypes turn ten times slower", _robust(prototype_scale=0.8)),
        Row("temperature 0.02", _robust(temperature=0.02)),
        Row("temperature 0.045", _robust(temperature=0.045)),
        Row("LARS 0.6", _robust("optim", name="lars", lr=0.6)),
        Row("crops from 0.08", _robust("views", crop_min=0.08)),
        Row("SimCLR, temperature 0.115", _simclr(0.06, temperature=0.115)),
    ),
)
FINAL = Part(
    "final",
    f"20 epochs of {IMAGES:,} images of CIFAR-10, batch {BATCH}, the 10,000 test images, three seeds",
    _cifar(20),
    (
        Row("robust CARL", _robust(), 3),
        Row("SimCLR", _simclr(0.06), 3),
        Row("SimCLR, temperature 0.115", _simclr(0.06, temperature=0.115), 3),
    ),
    random_seeds=3,
)
GRID = Part(
    "grid",
    f"K by batch: 5 epochs of {IMAGES:,} images of CIFAR-10, the 10,000 test images, one seed",
    _cifar(5),
    tuple(
        Row(f"K = {count}, batch {batch}", merge([_robust(prototypes=count), {"train": {"batch_size": batch}}]))
        for count in (30, 100, 300, 1000)
        for batch in (64, 128, 256)
    ),
)
BATCHES = Part(
    "batch",
    f"K = 1000, 20 epochs of {IMAGES:,} images of CIFAR-10, the 10,000 test images, one seed",
    _cifar(20),
    tuple(
        Row(f"batch {batch}", merge([_robust(prototypes=1000), {"train": {"batch_size": batch}}]))
        for batch in (64, BATCH)
    ),
)
SMALL = Part(
    "small",
    "2,000 images of CIFAR-10, 20 epochs, the 10,000 test images, one seed",
    _cifar(20, limit=2_000),
    (Row("robust CARL, 2,000 images", _robust()),),
)
SHAPES = Part(
    "shapes",
    "`shapes`, 24 px, batch 128, 8 epochs and views of its preset, all else from `robust`, one seed",
    merge([_cifar(8), {"data": {"source": "shapes", "image_size": 24}, "train": {"batch_size": 128}}]),
    (Row("robust CARL", _robust("views", crop_min=0.6, hue=0.5, grey=0.5)),),
)
PARTS = {part.name: part for part in (RATES, ABLATIONS, FINAL, GRID, BATCHES, SMALL, SHAPES)}


@dataclass(frozen=True)
class Line:
    """A row with its figures: of health the worst of the seeds that are done."""

    words: str
    seeds: int
    linear: list[float]
    knn: list[float]
    used: float | None  # part of the prototypes that are chosen
    information: float | None
    agreement: float | None  # part of the images whose two views choose the same prototype
    verdict: str


def line(words: str, outcomes: Sequence[Outcome]) -> Line | None:
    done = [outcome for outcome in outcomes if outcome["state"] == "done"]
    if not done:
        return None

    def scores(measure: str, name: str) -> list[float]:
        found = (outcome["measures"][measure]["accuracy"] for outcome in done)
        return [(accuracy.get("trained") or accuracy["random"])[name] for accuracy in found]

    judged = [(outcome["config"]["method"], outcome["probes"][-1]) for outcome in done if outcome.get("probes")]
    used = [probe["used"] / method["prototypes"] for method, probe in judged if "used" in probe]
    information = [probe["information"] for _, probe in judged if "information" in probe]
    agreement = [probe["agreement"] for _, probe in judged if "agreement" in probe]
    return Line(
        words,
        len(done),
        scores("linear-cached", "top-1"),
        scores("knn", "20"),
        min(used) if used else None,
        min(information) if information else None,
        min(agreement) if agreement else None,
        ", ".join(dict.fromkeys(str(outcome["verdict"]) for outcome in done if outcome.get("verdict"))),
    )


def table(part: Part, lines: Sequence[Line]) -> str:
    accuracies, of_health = ("linear, cached", "kNN, k = 20"), ("prototypes chosen", "information, nats", "views agree")
    heads = ("setting", "seeds", *accuracies, *of_health, "health")
    text = [part.title + ".", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for found in lines:
        used = "" if found.used is None else f"{100 * found.used:.0f}%"
        information = "" if found.information is None else f"{found.information:.2f}"
        agreement = "" if found.agreement is None else f"{100 * found.agreement:.0f}%"
        text.append(
            f"| {found.words} | {found.seeds} | {_mean(found.linear)} | {_mean(found.knn)} | {used} | {information} "
            f"| {agreement} | {found.verdict} |"
        )
    return "\n".join(text) + "\n"


def _mean(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def picture(part: Part, lines: Sequence[Line]) -> Figure:
    """A dot a seed, linear probe and kNN beside each other, with random weights as a line through each panel."""
    figure = Figure(figsize=(9.0, 1.1 + 0.26 * len(lines)), layout="constrained")
    figure.suptitle(textwrap.fill(part.title.replace("`", ""), 110), fontsize=9)
    first, second = figure.subplots(1, 2, sharey=True)
    *trained, untrained = lines
    for axes, title, of in ((first, "linear probe (%)", "linear"), (second, "kNN, k = 20 (%)", "knn")):
        for place, found in enumerate(trained):
            scores = getattr(found, of)
            axes.plot(scores, [place] * len(scores), "o", color="#2a6f97", markersize=5, alpha=0.7)
        axes.axvline(statistics.mean(getattr(untrained, of)), color="#999999", linestyle="--", linewidth=1)
        axes.set_title(f"{title}; dashed: random weights", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    first.set_yticks(range(len(trained)), [found.words for found in trained])
    first.set_ylim(len(trained) - 0.5, -0.5)
    return figure


def write_part(part: Part, outcomes: Mapping[str, Outcome], folder: Path, pictures: Path) -> None:
    for job in part.jobs():
        if job.name in outcomes:
            keep_outcome(job, outcomes[job.name], folder)
    rows = [(row.words, row.jobs(part.name, part.common)) for row in part.rows]
    rows.append(("random weights", part.untrained()))
    found = [line(words, [outcomes[job.name] for job in jobs if job.name in outcomes]) for words, jobs in rows]
    lines = [one for one in found if one is not None]
    files.write_text(folder / f"{part.name}.md", table(part, lines))
    if found[-1] is not None and len(lines) > 1:
        pictures.mkdir(parents=True, exist_ok=True)
        picture(part, lines).savefig(pictures / f"robustness-{part.name}.png", dpi=130)


def study(
    names: Sequence[str], data_root: Path | None, runs: Path, shard: Shard, say: Callable[[str], None], tables: bool
) -> int:
    failed: dict[str, str] = {}
    for part in (PARTS[name] for name in names):
        jobs = part.jobs()
        adopt_outcomes(jobs, RESULTS, runs)
        mine = [] if tables else shard.take(jobs)
        failed |= run_jobs(mine, runs, say, own_process=True, data_root=data_root)
        outcomes = {job.name: read_outcome(runs, job) for job in jobs}
        write_part(part, {name: found for name, found in outcomes.items() if found is not None}, RESULTS, PICTURES)
    return 1 if failed else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--data-root", type=Path, help="where CIFAR-10 is or goes")
    parser.add_argument("--runs", type=Path, default=Path("runs/robustness"))
    parser.add_argument("--shard", type=Shard.parse, default=Shard(), metavar="I/N")
    parser.add_argument("--tables", action="store_true", help="run nothing, only write tables and pictures again")
    args = parser.parse_args()
    try:
        sys.exit(study(args.parts, args.data_root, args.runs, args.shard, print, args.tables))
    except UserError as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
