"""What `carl pretrain` does around a run: choose between start and resume, and say how it ended."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from carl import distributed
from carl.assembly import build_method, gather_facts, load_data, pick_device, with_absolute_paths, without_init
from carl.config import Config, Layer, resolve
from carl.data.images import Dataset
from carl.errors import UserError
from carl.methods import DataFacts, find_method
from carl.reporting.report import write_report
from carl.runs import RunDirectory, free_name
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
        elif "TORCHELASTIC_RUN_ID" in os.environ:
            raise UserError("under torchrun a restarted process must find its run again; add --out RUN")
        config, dataset, facts = plan(layer)
        device = distributed.start(pick_device(config.train.device))
        distributed.check_agreement("a run", "to start")
        method = build_method(config, facts, device)  # before anything is written: its weights may not fit
        path = Path(distributed.agreed(str(out or free_name(Path("runs"), _run_name(config)))))
        run = RunDirectory.create(path, config, device, command) if distributed.is_main() else RunDirectory(path)
    for note in (*dataset.notes, *type(method).remarks(config, facts)):
        console.say(note)
    console.say(f"{_described(config, facts)}, on {device}\nrun directory: {run.path}")
    try:
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
    stored = run.read_config()
    config = resolve([stored.model_dump(), layer], find_method(stored.method.name).Options)
    check_resumable(stored, config)
    dataset = load_data(config)
    extended_from = stored.train.epochs if config.train.epochs > stored.train.epochs else None
    return config, dataset, gather_facts(config, dataset), extended_from


def _run_name(config: Config) -> str:
    return f"{Path(config.data.source).stem}-{config.method.name}"


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
