"""A race: how good an encoder each method gives within a budget of minutes, or of passes whatever the machine.

    python -m benchmarks.race --minutes 10 --data-root DIR [--method carl --method simclr ...]
    python -m benchmarks.race --passes 400000 --data-root DIR --images 10000 --judge held-out

The encoder is a ResNet-18, with the ImageNet stem or the small one (two classes of the race). The images are those of
CIFAR-10, all or the first 10,000. A budget of minutes includes everything until the encoder is saved: starting Python,
reading the data, finding out the pace of this machine, training. A budget of passes counts forward and backward passes
of a 32-px view; a larger view counts by its pixels, and a pass without gradients a third (`Method.passes`).

Each encoder is judged by linear-cached and kNN, after the clock has stopped: on the test images, or with `--judge
held-out` on 5,000 training images that are kept out of training, for choosing values. The curve is kNN after some of
the epochs. `lightly` is lightly's SimCLR example for PyTorch as it is published, ImageNet stem only.

Runs that are done are left alone. A run by passes resumes; one by minutes begins again, because a clock cannot be
stopped. Outcomes and the table of records go to results/race/; with `--tables` nothing is run.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import race_lightly
from benchmarks.race_records import write_records
from carl import files
from carl.config import Layer, merge
from carl.data.facts import DataFacts
from carl.device import hardware, pick_device
from carl.errors import UserError
from carl.methods import find_method
from carl.records.environment import machine
from carl.reproduction.jobs import (
    DONE,
    Job,
    Measure,
    Outcome,
    adopt_outcomes,
    keep_outcome,
    kept_file,
    outcome_file,
    read_outcome,
)
from carl.reproduction.runner import Shard, run_jobs
from carl.training.plan import completed, epochs_of_steps
from carl.views.configured import build_views

RESULTS = Path(__file__).parent.parent / "results" / "race"
HELD_OUT, WHOLE = 5_000, 50_000
PACE_STEPS = 20  # that find out the pace of the machine, inside the budget
MARGIN = 0.97  # of the time that is left is planned; what is over the budget is no record
CURVE_POINTS = 5
Say = Callable[[str], None]

# As on CIFAR by SimCLR's authors: no blur, half the jitter.
MILD_VIEWS: Layer = {"views": {"blur": 0.0, "jitter_strength": 0.5}}
MANY: Layer = {"views": {"count": 4}, "train": {"batch_size": 64}}
ENTRANTS: dict[str, Layer] = {
    "carl": {"method": {"name": "carl", "preset": "robust"}},
    "carl-views": merge(
        [
            MILD_VIEWS,
            MANY,
            {"method": {"name": "carl", "preset": "robust", "against": "mean", "negatives": "means"}},
        ]
    ),
    "simclr": {"method": {"name": "simclr", "preset": "robust"}},
    "simclr-mild": merge([MILD_VIEWS, {"method": {"name": "simclr", "preset": "robust"}, "train": {"batch_size": 64}}]),
    "byol": {"method": {"name": "byol", "preset": "robust"}},
    "moco": {"method": {"name": "moco", "preset": "robust"}},
    "swav": {"method": {"name": "swav", "preset": "robust"}},
    "swav-views": merge([MILD_VIEWS, MANY, {"method": {"name": "swav", "preset": "robust"}}]),
    "simsiam": {"method": {"name": "simsiam", "preset": "robust"}},
    "barlow": {"method": {"name": "barlow", "preset": "robust"}},
    "vicreg": {"method": {"name": "vicreg", "preset": "robust"}},
    "vicreg-views": merge([MILD_VIEWS, MANY, {"method": {"name": "vicreg", "preset": "robust"}}]),
    # EMP-SSL: LARS at 0.3, as its repository has it.
    "emp": merge(
        [
            MILD_VIEWS,
            {"method": {"name": "vicreg", "preset": "robust", "regulariser": "coding-rate"}},
            {
                "views": {"count": 8},
                "train": {"batch_size": 64},
                "optim": {"name": "lars", "lr": 0.3, "scale_lr": False},
            },
        ]
    ),
    "carp": {"method": {"name": "carp", "preset": "robust"}},
    "deepcluster": {"method": {"name": "deepcluster", "preset": "robust"}},
}
LIGHTLY = "lightly"


@dataclass(frozen=True)
class Track:
    """What all entrants share: a class of the race, its budget, and how it is judged."""

    stem: str
    images: int
    minutes: float | None  # one of the two is set
    passes: int | None
    judge: str
    source: str = "cifar10"
    side: int = 32
    backbone: str = "resnet18"

    @property
    def name(self) -> str:
        budget = f"{self.minutes:g}-minutes-{here()}" if self.minutes else f"{self.passes}-passes"
        return f"{self.stem}-stem/{self.images}-images/{budget}/{self.judge}"

    @property
    def trained(self) -> int:
        """Images that are trained on."""
        return min(self.images, WHOLE - HELD_OUT) if self.judge == "held-out" else self.images

    @property
    def data(self) -> dict[str, Any]:
        cut = {} if self.images == WHOLE else {"limit": self.images, "limit_by": "first"}
        return {"source": self.source, **cut, **({"held_out": HELD_OUT} if self.judge == "held-out" else {})}

    def layer(self, entrant: Layer, seed: int, steps: int) -> Layer:
        """The configuration of a run of so many steps, probed at start and end, some of its encoders kept."""
        config = completed(merge([entrant, {"data": self.data}]), self.facts)
        epochs = epochs_of_steps(steps, config.train.batch_size, self.trained, config.train.drop_last)
        kept = sorted({math.ceil(epochs * point / CURVE_POINTS) for point in range(1, CURVE_POINTS)} - {epochs})
        common = {
            "data": self.data,
            "model": {"backbone": self.backbone, "stem": self.stem},
            "train": {"seed": seed, "steps": steps, "keep_epochs": kept},
            "probe": {"every": epochs},
            "log": {"report": False},
        }
        return merge([entrant, common])

    @property
    def facts(self) -> DataFacts:
        return DataFacts(self.source, self.trained, 3, self.side, 10)

    def measures(self, layer: Layer) -> tuple[Measure, ...]:
        curve = (Measure("knn", at_epoch=epoch) for epoch in layer["train"]["keep_epochs"])
        return (Measure("linear-cached"), Measure("knn"), *curve)

    def steps_for(self, entrant: Layer, passes: float) -> int:
        """Steps that so many passes pay for."""
        config = completed(merge([entrant, {"data": self.data}]), self.facts)
        sides = [recipe.size for recipe in build_views(config, (0.5,) * 3, (0.5,) * 3).recipes]
        each = find_method(config.method.name).passes(config, sides)
        return max(1, int(passes / (each * config.train.batch_size)))


def here() -> str:
    """This machine in a word, so that its times are never taken for those of another."""
    found = machine(hardware(pick_device("auto")))
    return files.portable_name(f"{found['cuda'] or found['processor']}-{found['cores']}-cores").lower()


def run_entrant(track: Track, name: str, seed: int, runs: Path, data_root: Path | None, say: Say) -> Outcome | None:
    """Run one entrant with one seed, unless that is done; its outcome, None if it failed."""
    place = f"{track.name}/{name}/seed-{seed}"
    if name == LIGHTLY:
        return race_lightly.run(place, track.minutes, track.passes, track.data, seed, runs, RESULTS, data_root, say)
    entrant = ENTRANTS[name]
    if track.passes:
        layer = track.layer(entrant, seed, track.steps_for(entrant, track.passes))
        job = Job(place, layer, track.measures(layer), layer["train"]["steps"])
        adopt_outcomes([job], RESULTS, runs)
        run_jobs([job], runs, say, own_process=True, data_root=data_root)
        found = read_outcome(runs, job)
    else:
        job, found = run_by_the_clock(track, place, entrant, seed, runs, data_root, say)
    if found is None or found["state"] != DONE:
        return None
    keep_outcome(job, found, RESULTS)
    return found


def run_by_the_clock(
    track: Track, place: str, entrant: Layer, seed: int, runs: Path, data_root: Path | None, say: Say
) -> tuple[Job, Outcome | None]:
    """Find out the pace in a few steps, then take as many as the rest of the minutes has room for.

    The clock of this process runs from before a child starts until after it has ended. Images are decoded anew for each
    entrant, so that none profits from the cache of another.
    """
    known = _stored(kept_file(RESULTS, place)) or _stored(runs / place / "job.json")
    if (
        known is not None
        and "race" in known
        and without_length(known["layer"]) == without_length(track.layer(entrant, seed, PACE_STEPS))
    ):
        return Job(place, known["layer"], track.measures(known["layer"])), known
    trial = Job(f"{place}-pace", track.layer(entrant, seed, PACE_STEPS), ())
    for folder in (place, trial.name):  # a run that was cut off has no clock
        shutil.rmtree(runs / folder, ignore_errors=True)
    with race_lightly.cache_in(runs / trial.name / "cache"):
        return _race(track, place, entrant, seed, trial, runs, data_root, say)


def _race(
    track: Track, place: str, entrant: Layer, seed: int, trial: Job, runs: Path, data_root: Path | None, say: Say
) -> tuple[Job, Outcome | None]:
    assert track.minutes is not None
    spent, speed = _timed(trial, runs, data_root, say)
    if speed is None:
        return trial, None
    config = completed(merge([entrant, {"data": track.data}]), track.facts)
    step = config.train.batch_size / speed
    start = max(0.0, spent - PACE_STEPS * step)  # what a run takes besides its steps
    room = MARGIN * (60 * track.minutes - spent - start)
    if room < step:
        raise UserError(
            f"{track.minutes:g} minutes are too short for {place}: a start takes {start:.0f} s and a step {step:.1f} "
            f"s; give at least {math.ceil((spent + start + 10 * step) / 60)} minutes"
        )
    layer = track.layer(entrant, seed, int(room / step))
    job = Job(place, layer, track.measures(layer), layer["train"]["steps"])
    seconds, speed = _timed(replace(job, measures=()), runs, data_root, say)
    if speed is None:
        return job, None
    run_jobs([job], runs, say, own_process=True, data_root=data_root)
    found = read_outcome(runs, job)
    if found is not None and found["state"] == DONE:
        found["race"] = {
            "minutes": track.minutes,
            "seconds": round(spent + seconds, 1),
            "pace_seconds": round(spent, 1),
        }
        files.write_json(outcome_file(runs, job), found)
    shutil.rmtree(runs / trial.name, ignore_errors=True)
    return job, found


def _timed(job: Job, runs: Path, data_root: Path | None, say: Say) -> tuple[float, float | None]:
    """Seconds of the whole job, and images per second of its steps; None if it failed."""
    begin = time.monotonic()
    run_jobs([job], runs, say, own_process=True, data_root=data_root)
    seconds, found = time.monotonic() - begin, read_outcome(runs, job)
    return seconds, None if found is None or found["state"] != DONE else found.get("images_per_second")


def _stored(path: Path) -> Outcome | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("state") == DONE else None


def without_length(layer: Layer) -> Mapping[str, Any]:
    """What makes two runs by the clock the same, however many steps the machine took."""
    plain = json.loads(json.dumps(layer))
    train = {key: value for key, value in plain["train"].items() if key not in ("steps", "keep_epochs")}
    return {**plain, "train": train, "probe": {}}


def race(
    tracks: Sequence[Track],
    names: Sequence[str],
    seeds: int,
    runs: Path,
    data_root: Path | None,
    shard: Shard,
    say: Say,
) -> int:
    """Run all that is not done; 1 if something failed."""
    turns = [(t, n, s) for t in tracks for s in range(seeds) for n in names if n != LIGHTLY or t.stem == "imagenet"]
    failed = 0
    for track, name, seed in turns[shard.number - 1 :: shard.of]:
        failed += run_entrant(track, name, seed, runs, data_root, say) is None
        write_records(RESULTS)
    return 1 if failed else 0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--minutes", type=float, help="budget on this machine, everything included")
    budget.add_argument("--passes", type=int, help="budget in passes of a 32-px view: 20 epochs of 10,000 are 400000")
    budget.add_argument("--tables", action="store_true", help="run nothing, only write the table of records again")
    entrants = [*ENTRANTS, LIGHTLY]
    parser.add_argument(
        "--method", action="append", choices=entrants, metavar="NAME", help=f"all unless named: {', '.join(entrants)}"
    )
    parser.add_argument("--images", type=int, action="append", choices=(10_000, WHOLE), help="default: 10000 and 50000")
    parser.add_argument("--stem", action="append", choices=("imagenet", "small"), help="default: both")
    parser.add_argument("--seeds", type=int, default=3, help="seeds per entrant (default 3)")
    parser.add_argument("--judge", choices=("test", "held-out"), default="test", help="held-out is for choosing values")
    parser.add_argument("--data-root", type=Path, help="where CIFAR-10 is or goes")
    parser.add_argument("--runs", type=Path, default=Path("runs/race"))
    parser.add_argument("--shard", type=Shard.parse, default=Shard(), metavar="I/N", help="a part of the runs")
    args = parser.parse_args(arguments)
    if args.tables:
        write_records(RESULTS)
        return
    if (args.minutes if args.passes is None else args.passes) <= 0 or args.seeds < 1:
        parser.error("a budget and the number of seeds are above zero; for example --minutes 10 --seeds 3")
    tracks = [
        Track(stem, images, args.minutes, args.passes, args.judge)
        for stem in args.stem or ("imagenet", "small")
        for images in args.images or (10_000, WHOLE)
    ]
    try:
        sys.exit(race(tracks, args.method or entrants, args.seeds, args.runs, args.data_root, args.shard, print))
    except UserError as error:
        print(f"race: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
