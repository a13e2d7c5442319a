"""What `carl reproduce` does: expand the experiments into runs, estimate, run, and write the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from carl import files
from carl.config import resolve
from carl.defaults import METHOD
from carl.errors import UserError
from carl.methods import find_method
from carl.methods.training_data import load_data_for
from carl.records.known_data import KNOWN_DATA
from carl.reproduction import assignment_cost
from carl.reproduction.cost import Estimate, estimate
from carl.reproduction.data_paths import data_source
from carl.reproduction.dry_run import overview_lines
from carl.reproduction.jobs import (
    DONE,
    Job,
    Outcome,
    adopt_outcomes,
    adoptable_outcome,
    is_in_progress,
    keep_outcome,
    read_outcome,
)
from carl.reproduction.recipes import Experiment, distinct_jobs, find_experiments
from carl.reproduction.runner import INTERRUPTED, WAITING, Shard, job_state, outcome_state, run_jobs
from carl.reproduction.scales import PAPER_SIZE, SCALES, SMOKE_SIZE, Scale
from carl.reproduction.tables import write_tables_and_figures
from carl.terminal import Say
from carl.training.console import duration

DAY = 24 * 3600.0


@dataclass(frozen=True)
class ReproduceRequest:
    """What `carl reproduce` was asked to do."""

    experiment: str  # a name in RECIPES, or `all`
    scale: str  # a name in SCALES
    data_root: Path | None = None
    out: Path | None = None
    shard: str | None = None  # such as 2/4
    dry_run: bool = False
    status: bool = False
    yes: bool = False  # whether more than a day is agreed to
    own_runs: bool = False


@dataclass(frozen=True)
class Reproduction:
    """Experiments at a scale, and where their runs and results go."""

    scale: Scale
    experiments: tuple[Experiment, ...]
    shard: Shard
    data_root: Path | None
    runs: Path
    results: Path

    @property
    def all_jobs(self) -> list[Job]:
        return distinct_jobs(self.experiments)

    @property
    def jobs(self) -> list[Job]:
        """The jobs of this shard."""
        return self.shard.take(self.all_jobs)


def reproduce(request: ReproduceRequest, say: Say) -> int:
    """The exit code: 0, or 1 when a run failed."""
    if request.dry_run and request.status:
        raise UserError("--dry-run says what would be run and --status what is done; give one of them")
    work = plan_reproduction(request)
    if not work.jobs:
        say(f"--shard {request.shard} has no runs: there are only {len(work.all_jobs)} in all")
    elif request.dry_run:
        say_dry_run(work, say)
    elif request.status:
        say_status(work, say)
    else:
        return run_reproduction(work, request.yes, say)
    return 0


def plan_reproduction(request: ReproduceRequest) -> Reproduction:
    """What the request comes to. Only checks that folders exist; writes nothing."""
    scale = SCALES[request.scale]
    if request.own_runs:
        if not scale.on_the_way:
            raise UserError(f"--own-runs does nothing at --scale {scale.name}, which has one length; use --scale paper")
        scale = replace(scale, own_runs=True)
    experiments = tuple(find_experiments(request.experiment, scale))
    shard = Shard() if request.shard is None else Shard.parse(request.shard)
    check_folders(request.data_root, request.out)
    runs = Path("runs/reproduction") if request.out is None else request.out / "runs"
    results = request.out or Path("results/reproduction")
    return Reproduction(
        scale=scale,
        experiments=experiments,
        shard=shard,
        data_root=request.data_root,
        runs=runs / scale.name,
        results=results / scale.name,
    )


def check_folders(data_root: Path | None, out: Path | None) -> None:
    if data_root is not None and not data_root.is_dir():
        raise UserError(f"--data-root {data_root} is not a folder; name the one with the data sets, or make it first")
    if out is not None and out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is not a folder; name one, or a path where one can be made")


def run_reproduction(work: Reproduction, yes: bool, say: Say) -> int:
    """Run what is not done, and write tables and figures of what is; the exit code."""
    small = work.scale.name == SMOKE_SIZE  # where everything is run: that it runs is the question
    if not small and (adopted := adopt_outcomes(work.all_jobs, work.results, work.runs)):
        say(f"{adopted} outcomes are taken from {work.results}; to measure them yourself, give another --out")
    expected = None if small else expected_cost(work, yes, say)
    try:
        failed = run_jobs(work.jobs, work.runs, say, own_process=not small, data_root=work.data_root, expected=expected)
        measure_assignment_cost(work, say)
    finally:  # after Ctrl-C too: what is finished is shown and kept
        written = write_results(work)
    for path in written:
        say(str(path))
    if failed:
        say(f"{len(failed)} of {len(work.jobs)} runs failed: {', '.join(failed)}")
    return 1 if failed else 0


def expected_cost(work: Reproduction, yes: bool, say: Say) -> Estimate | None:
    """The time that the remaining runs will take, None if there are none. More than a day needs `yes`."""
    waiting = [job for job in work.jobs if job_state(work.runs, job) != DONE]
    if not waiting:
        return None
    check_data(waiting, work.data_root, work.scale, say)
    say("timing a few steps of each kind of run")
    cost = estimate(waiting, work.runs)
    say(f"{counted(waiting)}, {cost.in_words()}")
    if cost.seconds > DAY and not yes:
        raise UserError(f"this takes about {duration(cost.seconds)}, more than a day; add --yes to start it")
    return cost


def counted(jobs: Sequence[Job]) -> str:
    """`34 training runs and 3 untrained encoders`"""
    trained = sum(job.trains for job in jobs)
    others = f" and {len(jobs) - trained} untrained encoders" if trained < len(jobs) else ""
    return f"{trained} training runs{others}"


def check_data(jobs: Sequence[Job], data_root: Path | None, scale: Scale, say: Say) -> None:
    """Open or download each data set before the first run, and report those that are missing.

    If every run lacks its data, that is an error at once. At the paper's scale, data sets known by name are not
    opened: they would be downloaded before the cost is known. A file that stands for one must hold all its images.
    """
    needed = {job.name: {str(job.layer["data"]["source"]), *(m.data for m in job.measures if m.data)} for job in jobs}
    missing: dict[str, UserError] = {}
    for name in sorted({name for names in needed.values() for name in names}):
        data = data_source(name, data_root)
        if scale.name == PAPER_SIZE and data["source"] == name:
            continue
        try:
            images = load_data_for(resolve([{"data": data}], find_method(METHOD).Options)).training_images
        except UserError as error:
            missing[name] = error
            continue
        if scale.name == PAPER_SIZE and images != KNOWN_DATA[name].images:
            raise UserError(
                f"{data['source']} has {images:,} training images and the paper's {name} has "
                f"{KNOWN_DATA[name].images:,}; give --data-root with the whole data set, or use --scale cpu"
            )
    lost = [names & missing.keys() for names in needed.values()]
    if lost and all(lost):
        raise next(iter(missing.values()))
    for name, reason in missing.items():
        say(f"{sum(name in names for names in lost)} of {len(jobs)} runs will fail because {name} is missing: {reason}")


def measure_assignment_cost(work: Reproduction, say: Say) -> None:
    """Measure once what choosing prototypes costs, when no run is left that could slow it down."""
    jobs = [job for experiment in work.experiments for job in experiment.jobs]
    if any(job_state(work.runs, job) in (WAITING, INTERRUPTED) for job in jobs):
        return
    for experiment in work.experiments:
        if lacks_assignment_cost(work, experiment):
            record = assignment_cost.measure(work.scale, experiment.prototype_counts, say)
            assignment_cost.write_record(work.results, record)


def lacks_assignment_cost(work: Reproduction, experiment: Experiment) -> bool:
    counts = experiment.prototype_counts
    return bool(counts) and assignment_cost.read_record(work.results, work.scale, counts) is None


def write_results(work: Reproduction) -> list[Path]:
    """Tables and figures of what is finished, and the outcomes they were made from.

    One process at a time: another shard could have read fewer outcomes, and write its tables last.
    """
    work.runs.mkdir(parents=True, exist_ok=True)
    with files.only_holder(work.runs / ".tables.lock", patience=300.0):
        outcomes = read_outcomes(work.all_jobs, work.runs)
        for job in work.all_jobs:
            if job.name in outcomes:
                keep_outcome(job, outcomes[job.name], work.results)
        written = []
        for experiment in work.experiments:
            own = {job.name: outcomes[job.name] for job in experiment.jobs if job.name in outcomes}
            written += write_tables_and_figures(experiment, work.scale, own, work.results)
    return written


def read_outcomes(jobs: Sequence[Job], runs: Path) -> dict[str, Outcome]:
    found = {job.name: read_outcome(runs, job) for job in jobs}
    return {name: outcome for name, outcome in found.items() if outcome is not None}


def say_dry_run(work: Reproduction, say: Say) -> None:
    """The runs of this shard, with every value."""
    asked = {job.name for job in work.jobs}
    for experiment in work.experiments:
        own = sum(job.name in asked for job in experiment.jobs)
        counts = ", ".join(map(str, experiment.prototype_counts))
        also = f", and what choosing among {counts} prototypes costs" if counts else ""
        say(f"{experiment.name}: {experiment.title} ({experiment.section} of the paper), {own} runs{also}")
    say(f"{counted(work.jobs)} at {work.scale.name} scale\n")
    for line in overview_lines(work.jobs):
        say(line)


def say_status(work: Reproduction, say: Say) -> None:
    """For each experiment how many runs of this shard are in which state, and which runs are not done.

    The runs that wait are only counted if nothing of the experiment is done yet. Writes nothing.
    """
    asked = {job.name for job in work.jobs}
    for experiment in work.experiments:
        own = [job for job in experiment.jobs if job.name in asked]
        states = [state_now(job, work) for job in own]
        counts = ", ".join(f"{states.count(kind)} {kind}" for kind in dict.fromkeys(states)) or "none"
        say(f"{experiment.name}: {counts} of {len(states)} runs")
        unsaid = DONE if DONE in states else WAITING
        for job, kind in zip(own, states, strict=True):
            if kind != unsaid:
                say(f"  {kind}: {job.name}")
        if DONE in states and lacks_assignment_cost(work, experiment):
            say(f"  {WAITING}: what choosing prototypes costs, measured when the runs are done")


def state_now(job: Job, work: Reproduction) -> str:
    """The job's state, counting an outcome that would be adopted; `running` while a process works on it."""
    kept = adoptable_outcome(job, work.results, work.runs)
    found = job_state(work.runs, job) if kept is None else outcome_state(kept, job)
    return "running" if found != DONE and is_in_progress(job, work.runs) else found
