"""A plan becomes a run directory: train, then write what the report needs, and say how it ended."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from carl import distributed, files
from carl.config import Config
from carl.data.batches.base import TrainingBatches
from carl.data.dataset import Dataset, PackedImages, Split
from carl.data.facts import record_of
from carl.defaults import ADAPT, ADAPT_METHOD
from carl.device import hardware, pick_device
from carl.errors import UserError
from carl.evaluation.features import frozen, map_images
from carl.memory import peak_memory
from carl.methods import Method
from carl.methods.build import build_method, without_init
from carl.optim import rate_at
from carl.records.adaptation import KNN, KNN_AMONG, VOTERS, Adaptation, adaptation
from carl.records.metrics import FINISHED, has_finished
from carl.records.run_directory import RunDirectory, free_name
from carl.reporting.pages import write_report
from carl.training.checkpoint import Checkpoint, Saver, load_checkpoint
from carl.training.console import Console, duration
from carl.training.gallery_writer import write_gallery
from carl.training.guard import Guard
from carl.training.journal import Journal
from carl.training.learner import build_learner
from carl.training.loop import Trainer
from carl.training.plan import Plan, fitted
from carl.training.probe import Probe, Probing
from carl.training.progress import Progress
from carl.training.signals import Interrupted, Signals
from carl.training.trial import measured_pace


@dataclass(frozen=True)
class Process:
    """This process of a run."""

    device: torch.device
    main: bool  # whether it is the one that writes and speaks; asked once, while the processes are a group
    console: Console


def carry_out(plan: Plan) -> Path:
    """Start or resume the planned run, and return its directory; exits with 130 or 143 when a signal ended it."""
    device = distributed.start(pick_device(plan.config.train.device))
    process = Process(device, distributed.is_main(), Console(not distributed.is_main(), plan.config.log.details))
    distributed.check_agreement("a run", "to start" if plan.resumed is None else "to resume")
    torch.backends.cudnn.deterministic = True  # resumed runs must end with the same bits
    if plan.open_length is not None:
        with process.console.live():
            process.console.show_doing("timing a few steps")
            plan = fitted(plan, measured_pace(plan, device))
    saved = plan.resumed is not None and plan.resumed.checkpoint_file.exists()
    # Before anything is written, because the weights it starts from may not fit.
    method = build_method(without_init(plan.config) if saved else plan.config, plan.facts, device)
    run = plan.resumed or new_directory(plan, process)
    for line in (*plan.notes, f"{plan.in_words()}, on {device}", f"run directory: {run.path}"):
        process.console.say(line)
    try:
        with run.locked() if process.main else nullcontext(), refusals_of_the_disk(run):
            train(plan, method, run, process)
            if plan.config.log.report and process.main:
                process.console.say(f"report: {write_report(run.path)}")
        process.console.say(f"encoder: {run.encoder_file}")
    except Interrupted as interruption:
        process.console.say(f"stopped by {interruption}, all is saved; resume with: carl pretrain --resume {run.path}")
        distributed.stop()
        sys.exit(128 + interruption.signum)
    return run.path


def new_directory(plan: Plan, process: Process) -> RunDirectory:
    """The directory of a new run, made by the main process."""
    path = Path(distributed.agreed(str(plan.out or free_name(Path("runs"), plan.run_name))))
    if not process.main:
        return RunDirectory(path)
    about = {} if plan.started_from is None else {"started_from": asdict(plan.started_from)}
    return RunDirectory.create(path, plan.config, hardware(process.device), list(plan.command), about)


@contextmanager
def refusals_of_the_disk(run: RunDirectory) -> Iterator[None]:
    """If the disk refuses a file, say what is saved and how to continue."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM):
            raise
        kept = f"the last good checkpoint is {run.checkpoint_file}" if run.checkpoint_file.exists() else "none is saved"
        raise UserError(
            f"cannot write {error.filename or run.path}: {error.strerror}; {kept}: make room or give access, then go "
            f"on with `carl pretrain --resume {run.path}`"
        ) from None


def train(plan: Plan, method: Method, run: RunDirectory, process: Process) -> None:
    """Train to the last epoch, from the start or a checkpoint. Then write what the report needs, and how it ended."""
    if process.main:
        files.remove_partial_files(run.path)
    batches = plan.batches(process.device)
    checkpoint = checkpoint_to_restore(plan, run)
    journal = Journal(run.metrics_file, plan.config, checkpoint.step if checkpoint else -1, write=process.main)
    try:
        trainer = build_trainer(plan, method, batches, run=run, journal=journal, process=process)
        if checkpoint is not None:
            trainer.saver.restore(checkpoint)
            process.console.say(f"resuming {run.path} at step {checkpoint.step} of {trainer.learner.total_steps}")
        if plan.extended_from is not None:
            done = trainer.learner.steps_done / batches.steps_per_epoch
            process.console.say(extension_remark(plan.config, plan.extended_from, done))
        if process.main:
            run.write_config(plan.config)  # more epochs, or other values that may change
            run.write_data(record_of(plan.dataset, plan.facts))
            if checkpoint is None and plan.config.model.init is not None:
                trainer.saver.keep_start()
        with process.console.live():
            trainer.train()
        for remark in batches.remarks():
            process.console.say(remark)
        distributed.stop()  # only the main process has anything left to do
        if process.main:
            finish(plan, method, run, journal=journal, saver=trainer.saver, device=process.device)
    finally:
        journal.close()
    for line in last_words(plan.config, journal, run, trainer.saver.seconds):
        process.console.say(line)


def checkpoint_to_restore(plan: Plan, run: RunDirectory) -> Checkpoint | None:
    """The checkpoint of a resumed run, None if it has none yet. All processes must see the same one."""
    checkpoint = load_checkpoint(run.checkpoint_file) if run.checkpoint_file.exists() else None
    if checkpoint is not None and checkpoint.data_fingerprint != plan.dataset.fingerprint:
        raise UserError(
            f"the images of {plan.config.data.source} have changed since the run began; restore them, or start a new "
            "run"
        )
    distributed.check_agreement("a checkpoint of step", str(checkpoint.step if checkpoint else 0))
    distributed.check_agreement("images with the fingerprint", plan.dataset.fingerprint)
    return checkpoint


def build_trainer(
    plan: Plan,
    method: Method,
    batches: TrainingBatches,
    *,
    run: RunDirectory,
    journal: Journal,
    process: Process,
) -> Trainer:
    """The training loop of a run, with what watches, shows, probes and saves."""
    config, dataset, device = plan.config, plan.dataset, process.device
    probe = Probe(config, dataset, plan.views, device)

    def embed_all(function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        with frozen(method):
            return embed_share(function, batches, dataset, plan.facts.image_size)

    learner = build_learner(config, method, device, batches.steps_per_epoch)
    return Trainer(
        learner=learner,
        batches=batches,
        embed_all=embed_all,
        guard=Guard(learner, batches, run),
        progress=Progress(learner, batches.steps_per_epoch, journal, process.console),
        probing=Probing(probe, config, journal, process.console),
        saver=Saver(learner, run, dataset.fingerprint),
        signals=Signals(),
    )


def embed_share(
    function: Callable[[Tensor], Tensor], batches: TrainingBatches, dataset: Dataset, image_size: int
) -> tuple[Tensor, Tensor]:
    """Rows and values of this process's share of the training set. Laid end to end, the shares are all of it, once."""
    rows, values = [], []
    for part, pixels in batches.whole_images():
        images = Split(PackedImages(pixels))
        values.append(map_images(function, images, dataset.statistics, image_size, batches.device))
        rows.append(torch.from_numpy(part))
    return torch.cat(rows).to(batches.device), torch.cat(values).to(batches.device)


def extension_remark(config: Config, old_epochs: int, done: float) -> str:
    """How the schedules change when a run is made longer."""
    epochs, batch = config.train.epochs, config.train.batch_size
    before = rate_at(config.optim, batch, min(done / old_epochs, 1.0), old_epochs)
    after = rate_at(config.optim, batch, done / epochs, epochs)
    return (
        f"extended from {old_epochs} to {epochs} epochs: the learning rate, {before:.3g} at epoch {done:g} of the old "
        f"schedule, goes on from {after:.3g} to {rate_at(config.optim, batch, 1.0, epochs):.3g} over the new one"
    )


def finish(
    plan: Plan, method: Method, run: RunDirectory, *, journal: Journal, saver: Saver, device: torch.device
) -> None:
    """Write what the report needs besides the weights, unless a run that was finished before has it already."""
    finished = has_finished(journal.records)
    if not finished:
        found = adaptation(journal.records)
        saver.keep_better(trained=found is None or found.is_better)
    if plan.config.log.report and not (finished and run.gallery_file.exists()):
        write_gallery(run, plan, method, device)
    if not finished:
        journal.write(
            "event",
            saver.saved_step,
            plan.config.train.epochs,
            event=FINISHED,
            seconds=saver.seconds,
            peak_memory_bytes=peak_memory(device),
        )


def last_words(config: Config, journal: Journal, run: RunDirectory, seconds: float) -> list[str]:
    """How a run ended, for the screen."""
    probes = journal.of_kind("probe")
    lines = [f"finished epoch {config.train.epochs} after {duration(seconds)}"]
    if probes:
        last = probes[-1]
        if "used" in last and "verdict" in last:
            lines.append(f"prototypes: {last['verdict']}")
        elif "rank_me" in last:
            lines.append(f"RankMe {last['rank_me']:.0f}")
        lines += last.get("warnings", [])
        if "knn" in last and (config.model.init is None or adaptation(journal.records) is None):
            before = next((r["knn"] for r in probes if r["epoch"] == 0), None)
            start = "" if before is None else f", {before:.1f}% before training"
            voters = last.get(VOTERS, config.probe.train_images)  # older runs did not count them
            lines.append(f"kNN probe (online, {voters} voters): {last['knn']:.1f}%{start}")
    return lines if config.model.init is None else [*lines, *words_on_start(config, journal, run)]


def words_on_start(config: Config, journal: Journal, run: RunDirectory) -> list[str]:
    """Whether the run improved the encoder that it started from, and which of the two it keeps."""
    found = adaptation(journal.records)
    if found is None:
        return ["not compared with the encoder it started from, because it was not probed (probe.every)"]
    lines = [found.in_words()]
    if run.last_file.is_file():
        files_kept = f"{run.encoder_file.name} is the one it started from"
        lines.append(f"{files_kept}; the adapted one is {run.last_file.relative_to(run.path)}")
        if config.method.preset != ADAPT:
            lines.append(f"--method {ADAPT_METHOD} --preset {ADAPT} changes less of the encoder: try that next")
    return [*lines, more_certainty(found, run, config.log.report)] if found.may_be_chance else lines


def more_certainty(found: Adaptation, run: RunDirectory, has_report: bool) -> str:
    """How to tell start and end apart if the run's own probes cannot."""
    if found.measure == KNN:
        adapted = run.last_file if run.last_file.is_file() else run.path
        return f"`carl eval {adapted}` measures both on all test images"
    if found.measure == KNN_AMONG:
        return "a new run with --set data.held_out=N compares both on images that it did not train on"
    page = "the report" if has_report else f"`carl report {run.path}`"
    return f"{page} shows the neighbours that both find, to judge by eye; a few labels would say more"
