"""The study behind a stronger CARL: one value changed at a time, at equal passes, judged on held-out images.

    python -m benchmarks.race_study PART... --data-root DIR [--passes 120000] [--seeds 1] [--shard 1/2]

Each part is a table in results/race/. CARL's rows begin with today's `robust` preset or with `BASE`. SimCLR and VICReg
have parts of their own, so that as much is tried for them. Passes are counted as in `benchmarks.race`; 10,000 images of
CIFAR-10, ResNet-18 with the ImageNet stem, 5,000 other training images to judge on. Test images take no part.

Runs are resumed, and those that are done are left alone. With `--tables` nothing is run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.race import ENTRANTS, MILD_VIEWS, RESULTS, Track
from benchmarks.race_records import accuracy, mean_in_words
from carl import files
from carl.config import Layer, merge
from carl.errors import UserError
from carl.reproduction.jobs import DONE, Job, Measure, Outcome, adopt_outcomes, keep_outcome, read_outcome
from carl.reproduction.runner import Shard, run_jobs

CARL, SIMCLR, VICREG = (ENTRANTS[name] for name in ("carl", "simclr", "vicreg"))
MEAN: Layer = {"method": {"against": "mean", "negatives": "means"}}


def changed(start: Layer, **sections: Any) -> Layer:
    return merge([start, sections])


def batch(start: Layer, size: int) -> Layer:
    return changed(start, train={"batch_size": size})


def lars(start: Layer, rate: float) -> Layer:
    return changed(start, optim={"name": "lars", "lr": rate, "lr_end": rate / 1000})


BASE = batch(merge([CARL, MILD_VIEWS]), 64)
FOUR = changed(merge([BASE, MEAN]), views={"count": 4})
STEEP = lars(BASE, 1.2)
BASE_OPTIM = {"name": "sgd", "lr": 0.06, "lr_end": 0.0006}
HEADLESS = changed(  # the loss on the encoder's features, as in the preset `adapt`: parts of the same size
    STEEP, model={"head": "none"}, method={"parts": 1, "part_size": 4, "temperature": 1.0, "cosine_temperature": 0.115}
)
VICREG_BASE = batch(merge([VICREG, MILD_VIEWS]), 64)
PARTS: dict[str, dict[str, Layer]] = {
    "start": {
        "robust": CARL,
        "robust, no blur": changed(CARL, views={"blur": 0.0}),
        "robust, no blur, half the jitter": merge([CARL, MILD_VIEWS]),
        "robust, batch 64": batch(CARL, 64),
        "base: no blur, half the jitter, batch 64": BASE,
    },
    "batch": {f"base, batch {size}": batch(BASE, size) for size in (32, 64, 128, 256)},
    "views": {
        **{f"{count} views, each against the mean": changed(FOUR, views={"count": count}) for count in (2, 4, 8, 16)},
        **{
            f"{count} views, as many views per step": batch(changed(FOUR, views={"count": count}), 128 // count)
            for count in (4, 8)
        },
        "4 views, all views of others as negatives": changed(FOUR, method={"negatives": "views"}),
        "4 views in pairs": changed(FOUR, method={"against": "pairs"}),
    },
    "crops": {
        f"2 views and {count} of {side} px, areas to {area:g}": changed(
            merge([BASE, MEAN]), views={"small_count": count, "small_size": side, "small_area": (0.05, area)}
        )
        for count, side, area in ((4, 16, 0.14), (4, 16, 0.4), (8, 16, 0.4), (4, 20, 0.4), (4, 24, 0.4))
    },
    "teacher": {
        **{f"base, teacher {slow:g}": changed(BASE, method={"teacher": slow}) for slow in (0.9, 0.97, 0.99, 0.996)},
        "4 views, teacher 0.99": changed(FOUR, method={"teacher": 0.99}),
    },
    "rate": {
        **{f"base, SGD {rate:g}": changed(BASE, optim={"lr": rate}) for rate in (0.03, 0.06, 0.12, 0.24)},
        **{f"base, LARS {rate:g}": lars(BASE, rate) for rate in (0.3, 0.6, 1.2, 2.4)},
        "base, AdamW 0.001": changed(BASE, optim={"name": "adamw", "lr": 1e-3, "lr_end": 1e-6}),
        "base, SGD 0.12, warm-up of one epoch": changed(BASE, optim={"lr": 0.12, "warmup_epochs": 1.0}),
    },
    "head": {
        "base, head 2048 wide": changed(BASE, model={"hidden_dim": 2048}),
        "base, head 2048 wide, embedding 256": changed(
            BASE, model={"hidden_dim": 2048, "output_dim": 256}, method={"parts": 64, "temperature": 0.0212}
        ),
        "base, two hidden layers": changed(BASE, model={"hidden_layers": 2}),
        "base, frozen prototypes": changed(BASE, method={"frozen_prototypes": True}),
        "base, float32": changed(BASE, train={"precision": "fp32"}),
    },
    "lars": {
        "LARS 1.2, batch 32": batch(STEEP, 32),
        "LARS 2.4, batch 128": batch(lars(BASE, 2.4), 128),
        "LARS 1.2, head 2048 wide": changed(STEEP, model={"hidden_dim": 2048}),
        "LARS 1.2, two hidden layers": changed(STEEP, model={"hidden_layers": 2}),
        "LARS 1.2, teacher 0.99": changed(STEEP, method={"teacher": 0.99}),
        "LARS 1.2, frozen prototypes": changed(STEEP, method={"frozen_prototypes": True}),
        "LARS 1.2, crops of at least 8%": changed(STEEP, views={"crop_min": 0.08}),
        "LARS 1.2, full jitter": changed(STEEP, views={"jitter_strength": 1.0}),
        "LARS 1.2, 4 views": lars(FOUR, 1.2),
        "LARS 1.2, 4 views, as many views per step": batch(lars(FOUR, 1.2), 32),
        "LARS 1.2, 4 small views of 16 px": changed(
            merge([STEEP, MEAN]), views={"small_count": 4, "small_size": 16, "small_area": (0.05, 0.4)}
        ),
        "LARS 1.2, weight decay 1e-4": changed(STEEP, optim={"weight_decay": 1e-4}),
        "LARS 1.2, temperature 0.04": changed(STEEP, method={"temperature": 0.04}),
        "LARS 1.2, temperature 0.025": changed(STEEP, method={"temperature": 0.025}),
        "LARS 1.2, warm-up of one epoch": changed(STEEP, optim={"warmup_epochs": 1.0}),
        "LARS 1.2, 300 prototypes": changed(STEEP, method={"prototypes": 300}),
    },
    "ideas": {
        "LARS 1.2": STEEP,
        "LARS 1.2, no head": HEADLESS,
        "LARS 1.2, no head, SimCLR's temperature 0.2": changed(HEADLESS, method={"cosine_temperature": 0.2}),
        "SGD 0.06, no head": changed(HEADLESS, optim=BASE_OPTIM),
        "LARS 1.2, crops of at least 35%": changed(STEEP, views={"crop_min": 0.35}),
        "LARS 1.2, momentum 0.95": changed(STEEP, optim={"momentum": 0.95}),
        "LARS 1.2, biases and norms adapted too": changed(STEEP, optim={"exclude": "none"}),
        "LARS 1.2, a quarter of the jitter": changed(STEEP, views={"jitter_strength": 0.25}),
        "LARS 1.2, grey 0.1": changed(STEEP, views={"grey": 0.1}),
        "LARS 1.2, linear fall of the rate": changed(STEEP, optim={"schedule": "linear"}),
        "LARS 1.2, embedding of 256": changed(
            STEEP, model={"output_dim": 256}, method={"parts": 64, "temperature": 0.0212}
        ),
        "LARS 1.2, side of 48 px": changed(STEEP, data={"image_size": 48}),
        "LARS 1.2, side of 64 px": changed(STEEP, data={"image_size": 64}),
        "AdamW 0.002, weight decay 0.05": changed(
            STEEP, optim={"name": "adamw", "lr": 2e-3, "lr_end": 1e-6, "weight_decay": 0.05, "warmup_epochs": 0.5}
        ),
    },
    "simclr": {
        "SimCLR, robust": SIMCLR,
        "SimCLR, no blur, half the jitter": merge([SIMCLR, MILD_VIEWS]),
        **{f"SimCLR, mild views, batch {size}": batch(merge([SIMCLR, MILD_VIEWS]), size) for size in (32, 64, 128)},
        **{
            f"SimCLR, mild views, batch 64, SGD {rate:g}": changed(
                batch(merge([SIMCLR, MILD_VIEWS]), 64), optim={"lr": rate}
            )
            for rate in (0.03, 0.12, 0.24)
        },
        **{
            f"SimCLR, mild views, batch 64, LARS {rate:g}": lars(batch(merge([SIMCLR, MILD_VIEWS]), 64), rate)
            for rate in (0.6, 1.2)
        },
        **{
            f"SimCLR, mild views, batch 64, temperature {heat:g}": changed(
                batch(merge([SIMCLR, MILD_VIEWS]), 64), method={"temperature": heat}
            )
            for heat in (0.07, 0.2, 0.5)
        },
    },
    "vicreg": {
        "VICReg, robust": VICREG,
        "VICReg, mild views, batch 64": VICREG_BASE,
        **{f"VICReg, mild views, batch 64, SGD {r:g}": changed(VICREG_BASE, optim={"lr": r}) for r in (0.03, 0.12)},
        **{f"VICReg, mild views, batch 64, LARS {r:g}": lars(VICREG_BASE, r) for r in (0.3, 0.6)},
        **{f"VICReg, {count} views": changed(VICREG_BASE, views={"count": count}) for count in (4, 8)},
        "VICReg, head 2048 wide": changed(VICREG_BASE, model={"hidden_dim": 2048, "output_dim": 2048}),
        **{f"EMP-SSL's loss, {count} views": changed(ENTRANTS["emp"], views={"count": count}) for count in (4, 8, 16)},
    },
}


def jobs(part: str, passes: int, seeds: int, track: Track | None = None) -> dict[str, list[Job]]:
    """The runs of each row, one per seed."""
    track = track or Track("imagenet", 10_000, None, passes, "held-out")
    found: dict[str, list[Job]] = {}
    for words, entrant in PARTS[part].items():
        steps = track.steps_for(entrant, passes)
        for seed in range(seeds):
            layer = merge([track.layer(entrant, seed, steps), {"train": {"keep_epochs": []}}])
            name = f"study/{passes}-passes/{_slug(words)}/seed-{seed}"
            found.setdefault(words, []).append(Job(name, layer, (Measure("linear-cached"), Measure("knn")), steps))
    return found


def _slug(words: str) -> str:
    return "-".join("".join(c if c.isalnum() or c == "." else " " for c in words.lower()).split())


def table(part: str, passes: int, rows: dict[str, list[Outcome]]) -> str:
    """A row for each setting that has an outcome."""
    heads = ("setting", "seeds", "linear, cached", "kNN, k = 20", "health", "images/s")
    text = [
        f"Part `{part}`: {passes:,} passes on 10,000 images of CIFAR-10, ResNet-18, judged on 5,000 held-out training "
        "images.",
        "",
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
    ]
    for words, outcomes in rows.items():
        if outcomes:
            linear, knn = (
                [accuracy(o, *which) for o in outcomes] for which in (("linear-cached", "top-1"), ("knn", "20"))
            )
            health = ", ".join(dict.fromkeys(str(o.get("verdict")) for o in outcomes))
            cells = (words, str(len(outcomes)), mean_in_words(linear), mean_in_words(knn), health)
            text.append(f"| {' | '.join(cells)} | {outcomes[-1].get('images_per_second')} |")
    return "\n".join(text) + "\n"


def study(
    parts: Sequence[str], passes: int, seeds: int, runs: Path, data_root: Path | None, shard: Shard, tables: bool
) -> int:
    failed: dict[str, str] = {}
    for part in parts:
        found = jobs(part, passes, seeds)
        everything = [job for each in found.values() for job in each]
        adopt_outcomes(everything, RESULTS, runs)
        if not tables:
            failed |= run_jobs(shard.take(everything), runs, print, own_process=True, data_root=data_root)
        rows: dict[str, list[Outcome]] = {}
        for words, each in found.items():
            outcomes = [(job, read_outcome(runs, job)) for job in each]
            rows[words] = [outcome for _, outcome in outcomes if outcome is not None and outcome["state"] == DONE]
            for job, outcome in outcomes:
                if outcome is not None:
                    keep_outcome(job, outcome, RESULTS)
        files.write_text(RESULTS / f"study-{part}.md", table(part, passes, rows))
    return 1 if failed else 0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--passes", type=int, default=120_000, help="budget of each run (default 120000: 6 epochs)")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--data-root", type=Path, help="where CIFAR-10 is or goes")
    parser.add_argument("--runs", type=Path, default=Path("runs/race"))
    parser.add_argument("--shard", type=Shard.parse, default=Shard(), metavar="I/N", help="a part of the runs")
    parser.add_argument("--tables", action="store_true", help="run nothing, only write the tables again")
    args = parser.parse_args(arguments)
    if args.passes < 1 or args.seeds < 1:
        parser.error("--passes and --seeds are above zero; for example --passes 120000 --seeds 1")
    try:
        sys.exit(study(args.parts, args.passes, args.seeds, args.runs, args.data_root, args.shard, args.tables))
    except UserError as error:
        print(f"race_study: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
