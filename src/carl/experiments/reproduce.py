"""What `carl reproduce` does: expand, estimate, run, and write the tables."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from carl.config import Config
from carl.errors import UserError
from carl.experiments.jobs import Job, Outcome, read_outcome
from carl.experiments.outputs import write_all
from carl.experiments.recipes import Plan, distinct_jobs, find_plans
from carl.experiments.runner import Shard, run_jobs, state
from carl.experiments.scales import Scale, find_scale
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
    scale = dataclasses.replace(find_scale(scale_name), root=data_root)
    plans = find_plans(experiment, scale)
    part = Shard.parse(shard) if shard else Shard()
    jobs = distinct_jobs(plans)
    results = out or Path("results/reproduction")
    runs = Path("runs/reproduction") / scale.name if out is None else out / "runs" / scale.name
    if dry_run:
        for job in jobs:
            say(described(job))
        say(f"{len(jobs)} runs for {', '.join(plan.name for plan in plans)} at {scale.name} scale")
        return 0
    if status:
        say_status(plans, runs, say)
        return 0
    mine = part.take(jobs)
    waiting = [job for job in mine if state(runs, job) != "done"]
    if scale.name != "smoke" and waiting:
        seconds, speed = expected_seconds(waiting)
        say(f"{len(waiting)} runs, about {duration(seconds)} at {speed:.0f} images/s as measured here now")
        if seconds > DAY and not yes:
            raise UserError(f"this takes about {duration(seconds)}, more than a day; add --yes to start it")
    failed = run_jobs(mine, runs, say, own_process=scale.name != "smoke")
    for path in write_results(plans, scale, jobs, runs, results / scale.name):
        say(str(path))
    if failed:
        say(f"{len(failed)} of {len(mine)} runs failed: {', '.join(job.name for job in failed)}")
    return 1 if failed else 0


def write_results(plans: Sequence[Plan], scale: Scale, jobs: Sequence[Job], runs: Path, results: Path) -> list[Path]:
    """Tables and figures of what is finished, and the outcomes they were made from."""
    outcomes = collect(jobs, runs)
    for name, outcome in outcomes.items():
        path = results / "jobs" / f"{name.replace('/', '--')}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(outcome, indent=1) + "\n", encoding="utf-8")
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


def resolved(job: Job) -> Config:
    """The job's whole configuration, without opening its data: facts are those of the paper's data sets."""
    from carl.assembly import recognised_name
    from carl.config import resolve
    from carl.experiments.scales import IMAGES
    from carl.methods import DataFacts, find_method

    method = find_method(str(job.layer["method"]["name"]))
    data = job.layer["data"]
    name = recognised_name(str(data["source"]))
    sizes = {"cifar10": 32, "cifar100": 32, "stl10": 96, "imagenet64": 64}
    classes = {"cifar10": 10, "cifar100": 100, "stl10": 10, "imagenet64": 1000}
    images = 5000 if name == "stl10" and method.needs_labels else IMAGES.get(name, 10_000)
    images = min(images, data.get("limit") or images)
    facts = DataFacts(name, images, 3, sizes.get(name, 32), classes.get(name, 10))
    preset = method.preset(str(job.layer["method"].get("preset", "paper")), facts)
    size = {"data": {"image_size": facts.image_size}}
    return method.completed(resolve([size, preset, job.layer], method.Options))


def described(job: Job) -> str:
    """A line for each job with every value that decides its outcome."""
    measures = ", ".join(measure.key for measure in job.measures)
    if not job.trains:
        return f"{job.name}: untrained encoder; {measures}"
    config = resolved(job)
    sections = {
        name: values
        for name, values in config.model_dump(mode="json", exclude_none=True).items()
        if name in ("data", "views", "model", "method", "optim", "train")
    }
    shown = [f"{s}.{k}={v}" for s, values in sections.items() for k, v in values.items() if v not in ("", [])]
    return f"{job.name}: {' '.join(shown)}; then {measures}"


def expected_seconds(jobs: Sequence[Job]) -> tuple[float, float]:
    """Time for all jobs, and images/s, from a few steps of CARL on made-up images of the first job's size."""
    import torch

    from carl.assembly import build_method, pick_device
    from carl.data.batches import Batch
    from carl.data.views import Views, pipeline
    from carl.methods import DataFacts
    from carl.optim import build_optimizer

    first = next((job for job in jobs if job.trains), None)
    if first is None:
        return 60.0 * len(jobs), 0.0
    config = resolved(first)
    size, batch = config.data.image_size or 32, config.train.batch_size
    device = pick_device(config.train.device)
    method = build_method(config, DataFacts("cifar10", max(jobs[0].cost.__int__(), 50_000), 3, size, 10), device)
    optimizer = build_optimizer(method, config.optim)
    views = Views(pipeline("simclr", size), (0.5,) * 3, (0.25,) * 3, seed=0)
    images = torch.randint(0, 256, (batch, size, size, 3), dtype=torch.uint8, device=device)
    rows = torch.arange(batch, device=device)
    times = []
    for step in range(4):
        start = time.monotonic()
        loss, _ = method(Batch(views(images, rows, step), rows, rows % 10), 0.5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        float(loss.detach())
        times.append(time.monotonic() - start)
    speed = batch / min(times)
    return sum(job.cost for job in jobs) / speed, speed
