"""What `carl reproduce` does: expand, estimate, run, and write the tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from carl.assembly import load_data
from carl.config import resolve
from carl.errors import UserError
from carl.experiments.cost import estimate
from carl.experiments.jobs import Job, Outcome, adopt, keep, read_outcome
from carl.experiments.listing import listed
from carl.experiments.outputs import write_all
from carl.experiments.places import located
from carl.experiments.recipes import Plan, distinct_jobs, find_plans
from carl.experiments.runner import Shard, run_jobs, state
from carl.experiments.scales import Scale, find_scale
from carl.methods import find_method
from carl.methods.paper import PAPER_VALUES
from carl.training.console import duration

DAY = 24 * 3600.0


def reproduce(
    experiment: str,
    scale_name: str,
    data_root: Path | None,
    out: Path | None,
    shard: str | None,
    dry_run: bool,
    status: bool,
    yes: bool,
    say: Callable[[str], None],
) -> int:
    """The exit code: 0, or 1 when a run failed."""
    scale = find_scale(scale_name)
    plans = find_plans(experiment, scale)
    part = Shard.parse(shard) if shard else Shard()
    jobs = distinct_jobs(plans)
    results = out or Path("results/reproduction")
    runs = Path("runs/reproduction") / scale.name if out is None else out / "runs" / scale.name
    if dry_run:
        for plan in plans:
            say(f"{plan.name}: {plan.title} ({plan.section} of the paper), {len(plan.jobs)} runs")
        say(f"{counted(jobs)} at {scale.name} scale\n")
        for line in listed(jobs):
            say(line)
        return 0
    # At smoke scale everything is run: that it does is what is asked.
    if scale.name != "smoke" and (adopted := adopt(jobs, results / scale.name, runs)):
        say(f"{adopted} outcomes are those of {results / scale.name}; to measure them yourself, give another --out")
    if status:
        say_status(plans, runs, say)
        return 0
    mine = part.take(jobs)
    waiting = [job for job in mine if state(runs, job) != "done"]
    if scale.name == "paper":
        check_data(waiting, data_root)
    if scale.name != "smoke" and waiting:
        cost = estimate(waiting)
        say(f"{counted(waiting)}, {cost.in_words()}")
        if cost.seconds > DAY and not yes:
            raise UserError(f"this takes about {duration(cost.seconds)}, more than a day; add --yes to start it")
    failed = run_jobs(mine, runs, say, own_process=scale.name != "smoke", data_root=data_root)
    for path in write_results(plans, scale, jobs, runs, results / scale.name):
        say(str(path))
    if failed:
        say(f"{len(failed)} of {len(mine)} runs failed: {', '.join(failed)}")
    return 1 if failed else 0


def counted(jobs: Sequence[Job]) -> str:
    """`34 training runs and 3 untrained encoders`"""
    trained = sum(job.trains for job in jobs)
    others = f" and {len(jobs) - trained} untrained encoders" if trained < len(jobs) else ""
    return f"{trained} training runs{others}"


def check_data(jobs: Sequence[Job], data_root: Path | None) -> None:
    """Refuse files that are not all of the paper's data; sets that are downloaded by name are whole."""
    named = [(str(job.layer["data"]["source"]), *(m.data for m in job.measures if m.data)) for job in jobs]
    for name in dict.fromkeys(name for names in named for name in names):
        data = located(name, data_root)
        if data["source"] == name:
            continue
        dataset = load_data(resolve([{"data": data}], find_method("carl").Options))
        if dataset.training_images != PAPER_VALUES[name].images:
            raise UserError(
                f"{data['source']} has {dataset.training_images:,} training images and the paper's {name} has "
                f"{PAPER_VALUES[name].images:,}; give --data-root with the whole data set, or use --scale cpu"
            )


def write_results(plans: Sequence[Plan], scale: Scale, jobs: Sequence[Job], runs: Path, results: Path) -> list[Path]:
    """Tables and figures of what is finished, and the outcomes they were made from."""
    outcomes = collect(jobs, runs)
    for job in jobs:
        if job.name in outcomes:
            keep(job, outcomes[job.name], results)
    written = []
    for plan in plans:
        own = {job.name: outcomes[job.name] for job in plan.jobs if job.name in outcomes}
        written += write_all(plan, scale, own, results)
    return written


def collect(jobs: Sequence[Job], runs: Path) -> dict[str, Outcome]:
    found = {job.name: read_outcome(runs, job) for job in jobs}
    return {name: outcome for name, outcome in found.items() if outcome is not None}


def say_status(plans: Sequence[Plan], runs: Path, say: Callable[[str], None]) -> None:
    for plan in plans:
        states = [state(runs, job) for job in plan.jobs]
        counts = ", ".join(f"{states.count(kind)} {kind}" for kind in dict.fromkeys(states))
        say(f"{plan.name}: {counts} of {len(states)} runs")
        for job, kind in zip(plan.jobs, states, strict=True):
            if kind not in ("done", "waiting"):
                say(f"  {kind}: {job.name}")
