"""How long runs will take, estimated from a few steps of each kind of run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from carl import files
from carl.data.batches.base import Batch
from carl.device import pick_device
from carl.evaluation.protocols import PROTOCOLS
from carl.methods import find_method
from carl.methods.build import build_method
from carl.optim import build_optimizer
from carl.records.known_data import KNOWN_DATA
from carl.records.run_directory import RunDirectory
from carl.reproduction.dry_run import assumed_facts, assumed_views, resolved_config
from carl.reproduction.jobs import Job, Measure, is_measured, read_outcome
from carl.training.console import duration

TIMED = 3  # steps; the first warms up, the quickest of the others counts
CPU_BATCH = 64  # a CPU takes as long per image in larger batches


@dataclass(frozen=True)
class Kind:
    """Runs whose steps take the same time."""

    method: str
    image_size: int
    batch_size: int
    prototypes: int | None = None


@dataclass(frozen=True)
class Pace:
    """Seconds per image: to train on it, and to pass one view of it through the encoder."""

    train: float
    forward: float


@dataclass(frozen=True)
class Estimate:
    training: dict[str, float]  # seconds that are left, by job
    evaluation: dict[str, float]
    paces: dict[Kind, Pace]
    whole: dict[str, float]  # seconds by job if nothing of it were done

    @property
    def seconds(self) -> float:
        return sum(self.training.values()) + sum(self.evaluation.values())

    @property
    def left(self) -> dict[str, float]:
        """Seconds that are left, by job."""
        return {name: seconds + self.evaluation[name] for name, seconds in self.training.items()}

    def in_words(self) -> str:
        speeds: dict[str, list[float]] = {}
        for kind, pace in self.paces.items():
            speeds.setdefault(f"{kind.method} {kind.image_size} px", []).append(1 / pace.train)
        kinds = (f"{what} {_from_to(found)} images/s" for what, found in speeds.items())
        measured = f", as measured here now: {', '.join(kinds)}" if self.paces else ""
        training, evaluation = (duration(sum(part.values())) for part in (self.training, self.evaluation))
        parts = f"training {training}, evaluation {evaluation}"
        return f"about {duration(self.seconds)} ({parts}){measured}"


def _from_to(values: Sequence[float]) -> str:
    """`207 to 302`, or one number if the two agree in three digits."""
    return " to ".join(dict.fromkeys(f"{value:.3g}" for value in (min(values), max(values))))


def estimate(jobs: Sequence[Job], root: Path) -> Estimate:
    """The time for all jobs; what `root` already holds of their runs is not counted again.

    PCL's clustering comes on top as multiplications; loading data and probes are left out.
    """
    kinds = {job.name: kind_of(job) for job in jobs if job.trains}
    firsts = {kind: job for job in reversed(jobs) if (kind := kinds.get(job.name)) is not None}
    paces = {kind: measured_pace(job) for kind, job in firsts.items()}
    slowest = max((pace.forward for pace in paces.values()), default=0.001)  # a guess, for untrained encoders alone
    training, evaluation, whole = {}, {}, {}
    for job in jobs:
        left = part_left(job, root)
        forward = paces[kinds[job.name]].forward if job.trains else slowest
        train = paces[kinds[job.name]].train * job.cost + clustering(job) if job.trains else 0.0
        measures = {measure: forward * passes(job, measure) for measure in job.measures}
        known = read_outcome(root, job) if left == 0 else None
        training[job.name] = left * train
        evaluation[job.name] = sum(seconds for m, seconds in measures.items() if not is_measured(known, m))
        whole[job.name] = train + sum(measures.values())
    return Estimate(training, evaluation, paces, whole)


def part_left(job: Job, root: Path) -> float:
    """The part of the job's training that is left: 1 before it, 0 after it."""
    run = RunDirectory(root / job.name)
    if not job.trains or not run.checkpoint_file.is_file():
        return float(job.trains)
    reached = max((record.get("epoch", 0.0) for record in files.read_json_lines(run.metrics_file)), default=0.0)
    return max(0.0, 1 - reached / resolved_config(job).train.epochs)


def kind_of(job: Job) -> Kind:
    config = resolved_config(job)
    assert config.data.image_size is not None
    return Kind(
        config.method.name,
        config.data.image_size,
        config.train.batch_size,
        find_method(config.method.name).prototype_count(config),
    )


def passes(job: Job, measure: Measure) -> float:
    """How many times an image passes through the encoder for a measure; forward and backward count as three."""
    facts = assumed_facts(job)
    known = KNOWN_DATA.get(measure.data or facts.name, KNOWN_DATA["cifar10"])
    images = measure.limit or min(facts.images, known.labelled)
    protocol = PROTOCOLS[measure.protocol]
    if protocol.epochs is None:  # features are computed once, and once more for random weights
        return float(2 * (images + known.test))
    each = 3 * images * (measure.fraction or 1.0) if protocol.trains_encoder else images
    return (measure.epochs or protocol.epochs) * each + known.test


def measured_pace(job: Job) -> Pace:
    """Timed with steps on made-up images, with the job's method, views, size and optimiser."""
    config, facts = resolved_config(job), assumed_facts(job)
    device = pick_device(config.train.device)
    batch = config.train.batch_size if device.type != "cpu" else min(CPU_BATCH, config.train.batch_size)
    method = build_method(config, facts, device)
    optimizer, views = build_optimizer(method, config.optim), assumed_views(config)
    size = config.data.image_size
    assert size is not None
    images = torch.randint(0, 256, (batch, size, size, 3), dtype=torch.uint8, device=device)
    rows = torch.arange(batch, device=device)
    times = []
    for step in range(TIMED):
        start = time.monotonic()
        seen = views(images, rows, step)
        loss, _ = method(Batch(seen, rows, rows % max(1, facts.classes)), 0.5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        method.after_step(0.5)
        float(loss.detach())  # waits for the device
        times.append(time.monotonic() - start)
    start = time.monotonic()
    with torch.no_grad():
        float(method.encoder(seen[0]).sum())
    return Pace(min(times[1:]) / batch, (time.monotonic() - start) / batch)


def clustering(job: Job) -> float:
    """Seconds of k-means over all epochs, from the time of one matrix product; 0 for methods without clustering."""
    config, facts = resolved_config(job), assumed_facts(job)
    distances = find_method(config.method.name).clustering_distances(config, facts.images)
    if not distances:
        return 0.0
    points = torch.randn(4096, config.model.output_dim, device=pick_device(config.train.device))
    start = time.monotonic()
    float((points @ points[:1000].T).argmax(dim=1).sum())
    pair = (time.monotonic() - start) / (4096 * 1000)
    return distances * pair
