"""What `carl pretrain` does around a run: choose between start and resume, and say how it ended."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from carl import distributed, files
from carl.config import Config, Layer, resolve
from carl.data.dataset import UNLABELLED, Dataset
from carl.data.facts import DataFacts
from carl.device import hardware, pick_device
from carl.errors import UserError
from carl.methods import find_method
from carl.methods.build import build_method, load_data_for, read_config, with_absolute_paths, without_init
from carl.records.run_directory import RunDirectory, free_name
from carl.reporting.pages import write_report
from carl.training.console import Console
from carl.training.loop import Interrupted
from carl.training.pretrain import check_resumable, plan, run_pretraining, summary


def pretrain(layer: Layer, out: Path | None, resume: str | None, command: list[str]) -> Path:
    """Start a run or go on with one, and name its directory; exits with 130 or 143 when a signal ended the run."""
    main = os.environ.get("RANK", "0") == "0"
    console = Console(silent=not main)
    layer = with_absolute_paths(layer)
    extended_from: int | None = None
    found = _run_to_resume(out, resume)
    if found is not None:
        run = found
        config, dataset, facts, extended_from = _reopened(run, layer)
        device = distributed.start(pick_device(config.train.device))
        distributed.check_agreement("a run", "to resume")
        saved = run.checkpoint_file.exists()
        method = build_method(without_init(config) if saved else config, facts, device)
    else:
        if not layer.get("data", {}).get("source"):
            raise UserError("no DATA given; name a data set, a folder or a file, for example: carl pretrain shapes")
        if out is not None:
            RunDirectory.check_free(out)
        elif int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")):
            raise UserError("with --max-restarts a process that is started again must find its run; add --out RUN")
        config, dataset, facts = plan(layer)
        device = distributed.start(pick_device(config.train.device))
        distributed.check_agreement("a run", "to start")
        method = build_method(config, facts, device)  # before anything is written: its weights may not fit
        path = Path(distributed.agreed(str(out or free_name(Path("runs"), _run_name(config)))))
        run = (
            RunDirectory.create(path, config, hardware(device), command)
            if distributed.is_main()
            else RunDirectory(path)
        )
    for note in (*dataset.notes, *_remarks_on_data(config, dataset, facts), *type(method).remarks(config, facts)):
        console.say(note)
    console.say(f"{_described(config, facts)}, on {device}\nrun directory: {run.path}")
    try:
        with run.locked() if distributed.is_main() else nullcontext(), _refusals_of_the_disk(run):
            trainer = run_pretraining(config, dataset, facts, method, run, device, console, extended_from)
            for line in summary(trainer):
                console.say(line)
            if config.log.report and main:
                console.say(f"report: {write_report(run.path)}")
        console.say(f"encoder: {run.encoder_file}")
    except Interrupted as interruption:
        console.say(f"stopped by {interruption}, all is saved; go on with: carl pretrain --resume {run.path}")
        distributed.stop()
        sys.exit(128 + interruption.signum)
    return run.path


@contextmanager
def _refusals_of_the_disk(run: RunDirectory) -> Iterator[None]:
    """Say what is safe when nothing more can be written."""
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


def _run_to_resume(out: Path | None, resume: str | None) -> RunDirectory | None:
    """The run to go on with: one that is named, or --out if it is there and we may."""
    if resume is not None and resume != "auto" and out is not None:
        raise UserError(f"--resume {resume} goes on in its own directory; leave out --out {out}")
    if resume is not None and resume != "auto":
        return RunDirectory.open(Path(resume))
    if resume == "auto" and out is None:
        raise UserError("--resume auto needs to know the run; add --out RUN")
    goes_on = resume == "auto" or distributed.restarted()
    return RunDirectory.open(out) if goes_on and out is not None and (out / "config.toml").exists() else None


def _reopened(run: RunDirectory, layer: Layer) -> tuple[Config, Dataset, DataFacts, int | None]:
    """A run's configuration with what the user adds now, its data, and the epochs it had if it gets more."""
    stored = read_config(run)
    config = resolve([stored.model_dump(), layer], find_method(stored.method.name).Options)
    check_resumable(stored, config)
    if config.data.image_size is None:
        raise UserError(f"{run.config_file} is not complete, it lacks data.image_size; restore it, or start a new run")
    dataset = load_data_for(config)
    if dataset.stream is not None and config.data.lanes is None:
        raise UserError(f"{run.config_file} is not complete, it lacks data.lanes; restore it, or start a new run")
    extended_from = stored.train.epochs if config.train.epochs > stored.train.epochs else None
    return config, dataset, DataFacts.of(config.data, dataset), extended_from


def _remarks_on_data(config: Config, dataset: Dataset, facts: DataFacts) -> list[str]:
    """What the views and a limit make of these data that the user may not expect."""
    remarks = []
    if facts.channels != 3:
        many = "1 channel" if facts.channels == 1 else f"{facts.channels} channels"
        remarks.append(f"images have {many}: jitter, grey and solarisation need red, green and blue and are left out")
    labels = dataset.pretraining.labels
    if config.data.limit is not None and labels is not None and dataset.pretraining.labelled:
        found, known = len(set(labels[labels != UNLABELLED].tolist())), len(dataset.class_names)
        if found < known:
            remarks.append(f"the first {len(labels)} images (data.limit) are of {found} of the {known} classes")
    return remarks


def _run_name(config: Config) -> str:
    return files.portable_name(f"{Path(config.data.source).stem}-{config.method.name}")


def _described(config: Config, facts: DataFacts) -> str:
    prototypes = getattr(config.method, "prototypes", None)
    parts = [
        f"{config.method.name} ({config.method.preset} preset) on {facts.name}: {facts.images} images",
        f"views of {facts.image_size} px",
        config.model.backbone + ("" if config.model.stem == "imagenet" else " (small stem)"),
        *([f"{prototypes} prototypes"] if prototypes else []),
        f"{config.train.epochs} epoch{'' if config.train.epochs == 1 else 's'}",
        f"batch {config.train.batch_size}",
    ]
    return ", ".join(parts)
