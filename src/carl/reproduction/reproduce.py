"""What `carl reproduce` does: expand, estimate, run, and write the tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from carl import files
from carl.config import resolve
from carl.errors import UserError
from carl.methods import find_method
from carl.methods.build import load_data_for
from carl.methods.paper import PAPER_VALUES
from carl.reproduction import assignment_cost
from carl.reproduction.cost import estimate
from carl.reproduction.data_paths import located
from carl.reproduction.jobs import Job, Outcome, adopt, is_at_work, keep, read_outcome, to_adopt
from carl.reproduction.overview import listed
from carl.reproduction.recipes import Plan, distinct_jobs, find_plans
from carl.reproduction.runner import Shard, run_jobs, state, state_of
from carl.reproduction.scales import SCALES, Scale
from carl.reproduction.tables import write_all
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
    own_runs: bool,
    say: Callable[[str], None],
) -> int:
    """The exit code: 0, or 1 when a run failed."""
    scale = SCALES[scale_name]
    if own_runs:
        if not scale.on_the_way:
            raise UserError(f"--own-runs is of no use at --scale {scale.name}, which has one length; use --scale paper")
        scale = replace(scale, own_runs=True)
    plans = find_plans(experiment, scale)
    jobs = distinct_jobs(plans)
    mine = (Shard() if shard is None else Shard.parse(shard)).take(jobs)
    if dry_run and status:
        raise UserError("--dry-run says what would be run and --status what is done; give one of them")
    check_folders(data_root, out)
    results = out or Path("results/reproduction")
    runs = Path("runs/reproduction") / scale.name if out is None else out / "runs" / scale.name
    if not mine:
        say(f"--shard {shard} has no run, for there are {len(jobs)} in all")
        return 0
    if dry_run:
        say_plans(plans, mine, scale, say)
        return 0
    if status:
        say_status(plans, mine, scale, results / scale.name, runs, say)
        return 0
    # At smoke scale everything is run: that it does is what is asked.
    if scale.name != "smoke" and (adopted := adopt(jobs, results / scale.name, runs)):
        say(f"{adopted} outcomes are those of {results / scale.name}; to measure them yourself, give another --out")
    waiting = [job for job in mine if state(runs, job) != "done"]
    cost = None
    if scale.name != "smoke" and waiting:
        check_data(waiting, data_root, scale, say)
        say("timing a few steps of each kind of run")
        cost = estimate(waiting, runs)
        say(f"{counted(waiting)}, {cost.in_words()}")
        if cost.seconds > DAY and not yes:
            raise UserError(f"this takes about {duration(cost.seconds)}, more than a day; add --yes to start it")
    try:
        failed = run_jobs(mine, runs, say, scale.name != "smoke", data_root, cost)
        measure_choosing(plans, scale, runs, results / scale.name, say)
    finally:  # after Ctrl-C too: what is finished is shown and kept
        written = write_results(plans, scale, jobs, runs, results / scale.name)
    for path in written:
        say(str(path))
    if failed:
        say(f"{len(failed)} of {len(mine)} runs failed: {', '.join(failed)}")
    return 1 if failed else 0


def counted(jobs: Sequence[Job]) -> str:
    """`34 training runs and 3 untrained encoders`"""
    trained = sum(job.trains for job in jobs)
    others = f" and {len(jobs) - trained} untrained encoders" if trained < len(jobs) else ""
    return f"{trained} training runs{others}"


def check_folders(data_root: Path | None, out: Path | None) -> None:
    if data_root is not None and not data_root.is_dir():
        raise UserError(f"--data-root {data_root} is no folder; name the one with the data sets, or make it for them")
    if out is not None and out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is no folder; name one, or a place for a new one")


def check_data(jobs: Sequence[Job], data_root: Path | None, scale: Scale, say: Callable[[str], None]) -> None:
    """Open each data set, or download it, before the first run; at the paper's scale look at files alone, for a part.

    What some runs cannot have is said, and these will fail; what no run can have is an error at once.
    """
    needed = {job.name: {str(job.layer["data"]["source"]), *(m.data for m in job.measures if m.data)} for job in jobs}
    missing: dict[str, UserError] = {}
    for name in sorted({name for names in needed.values() for name in names}):
        data = located(name, data_root)
        if scale.name == "paper" and data["source"] == name:
            continue  # whole, and not to be downloaded before the cost is known
        try:
            images = load_data_for(resolve([{"data": data}], find_method("carl").Options)).training_images
        except UserError as error:
            missing[name] = error
            continue
        if scale.name == "paper" and images != PAPER_VALUES[name].images:
            raise UserError(
                f"{data['source']} has {images:,} training images and the paper's {name} has "
                f"{PAPER_VALUES[name].images:,}; give --data-root with the whole data set, or use --scale cpu"
            )
    lost = [names & missing.keys() for names in needed.values()]
    if lost and all(lost):
        raise next(iter(missing.values()))
    for name, reason in missing.items():
        say(f"{sum(name in names for names in lost)} of {len(jobs)} runs will fail, for want of {name}: {reason}")


def measure_choosing(
    plans: Sequence[Plan], scale: Scale, runs: Path, results: Path, say: Callable[[str], None]
) -> None:
    """What choosing prototypes costs, once, when no run is left that could be going on beside it."""
    left = any(state(runs, job) in ("waiting", "cut off") for plan in plans for job in plan.jobs)
    for plan in plans:
        if plan.choosing and not left and assignment_cost.read(results, scale, plan.choosing) is None:
            assignment_cost.write(results, assignment_cost.measure(scale, plan.choosing, say))


def write_results(plans: Sequence[Plan], scale: Scale, jobs: Sequence[Job], runs: Path, results: Path) -> list[Path]:
    """Tables and figures of what is finished, and the outcomes they were made from.

    One process at a time: another shard could have read fewer outcomes, and write its tables last.
    """
    runs.mkdir(parents=True, exist_ok=True)
    with files.only_holder(runs / ".tables.lock", patience=300.0):
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


def say_plans(plans: Sequence[Plan], jobs: Sequence[Job], scale: Scale, say: Callable[[str], None]) -> None:
    """The dry run: `jobs`, which may be a part of all, with every value."""
    asked = {job.name for job in jobs}
    for plan in plans:
        own = sum(job.name in asked for job in plan.jobs)
        also = f", and what choosing among {', '.join(map(str, plan.choosing))} prototypes costs" * bool(plan.choosing)
        say(f"{plan.name}: {plan.title} ({plan.section} of the paper), {own} runs{also}")
    say(f"{counted(jobs)} at {scale.name} scale\n")
    for line in listed(jobs):
        say(line)


def state_now(job: Job, results: Path, runs: Path) -> str:
    """The job's state, outcomes that would be adopted counted as its own; `running` while a process is at it."""
    kept = to_adopt(job, results, runs)
    found = state(runs, job) if kept is None else state_of(kept, job)
    return "running" if found != "done" and is_at_work(job, runs) else found


def say_status(
    plans: Sequence[Plan], jobs: Sequence[Job], scale: Scale, results: Path, runs: Path, say: Callable[[str], None]
) -> None:
    """How many of each plan's jobs, as far as they are among `jobs`, are in which state; which, of those that are left.

    Of a plan of which nothing is done yet, all are. Writes nothing.
    """
    asked = {job.name for job in jobs}
    for plan in plans:
        own = [job for job in plan.jobs if job.name in asked]
        states = [state_now(job, results, runs) for job in own]
        counts = "".join(f"{states.count(kind)} {kind}, " for kind in dict.fromkeys(states))[:-2] or "none"
        say(f"{plan.name}: {counts} of {len(states)} runs")
        unsaid = ("done",) if "done" in states else ("waiting",)
        for job, kind in zip(own, states, strict=True):
            if kind not in unsaid:
                say(f"  {kind}: {job.name}")
        if plan.choosing and "done" in states and assignment_cost.read(results, scale, plan.choosing) is None:
            say("  waiting: what choosing prototypes costs, measured when the runs are done")
