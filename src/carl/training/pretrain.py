"""From what the user asked for to a finished run directory."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from carl import distributed, files
from carl.assembly import build_views, gather_facts, load_data
from carl.config import Config, Layer, differences, merge, resolve
from carl.data.batches import Batches, check_batch_size
from carl.data.images import Dataset
from carl.data.views import PIPELINES
from carl.errors import UserError, suggestion
from carl.evaluation.features import extract_features
from carl.methods import DataFacts, Method, find_method
from carl.optim import rate_at
from carl.runs import RunDirectory
from carl.training.checkpoints import load_checkpoint
from carl.training.console import Console, duration
from carl.training.gallery import write_gallery
from carl.training.journal import Journal
from carl.training.loop import Trainer
from carl.training.probe import Probe

# What may change between the parts of a run: none of it has a say in the weights.
FREE_ON_RESUME = ("log.", "probe.", "train.device", "train.keep_epochs", "train.checkpoint_steps", "data.root")


def plan(layer: Layer) -> tuple[Config, Dataset, DataFacts]:
    """The complete configuration for what the user asked, and the data it is for.

    Everything the user wrote is checked before the data are opened, so that a slip costs no time.
    """
    method = find_method(str(merge([layer]).get("method", {}).get("name", "carl")))
    config = resolve([layer], method.Options)
    if config.views.pipeline not in PIPELINES:
        raise UserError(
            f"unknown views.pipeline={config.views.pipeline!r}{suggestion(config.views.pipeline, PIPELINES)}"
        )
    dataset = load_data(config)
    facts = gather_facts(config, dataset)
    known = {"data": {"image_size": facts.image_size}}
    preset = config.method.preset or method.default_preset(facts)
    chosen = {"method": {"preset": preset}}
    config = resolve([known, method.preset(preset, facts), layer, chosen], method.Options)
    facts = gather_facts(config, dataset)  # the preset may have set the side of the views
    if config.probe.every is None:
        config = resolve([config.model_dump(), {"probe": {"every": max(1, config.train.epochs // 20)}}], method.Options)
    config = method.completed(config)
    check_batch_size(config.train.batch_size, len(dataset.pretraining), config.train.drop_last)
    check_processes(config)
    recipes = build_views(config, dataset).recipes
    if len(recipes) < method.views_needed:
        raise UserError(
            f"views.pipeline={config.views.pipeline!r} makes {len(recipes)} view of an image, "
            f"{config.method.name} needs {method.views_needed}; use simclr"
        )
    return config, dataset, facts


def check_processes(config: Config) -> None:
    """What the number of processes that torchrun starts allows; known before they have met."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if config.train.batch_size % ranks:
        raise UserError(
            f"batch size {config.train.batch_size} does not divide over {ranks} processes; use a multiple of {ranks}"
        )
    if config.train.accumulate > 1 and ranks > 1:
        raise UserError(
            f"train.accumulate={config.train.accumulate} works in one process; with {ranks} processes "
            "each has a part of the batch already: leave it at 1"
        )


def check_resumable(stored: Config, asked: Config) -> None:
    """Refuse a change that would make the rest of a run another run; more epochs are allowed."""
    changed = [line for line in differences(stored, asked) if not line.startswith(FREE_ON_RESUME)]
    changed = [
        line for line in changed if not line.startswith("train.epochs") or asked.train.epochs < stored.train.epochs
    ]
    if changed:
        raise UserError(
            f"the run was made with another configuration ({'; '.join(changed)}); "
            "resume it without these changes, or start a new run with another --out"
        )


def extension_remark(config: Config, old_epochs: int, done: float) -> str:
    """How the schedules change when a run is made longer."""
    epochs, batch = config.train.epochs, config.train.batch_size
    before = rate_at(config.optim, batch, min(done / old_epochs, 1.0), old_epochs)
    after = rate_at(config.optim, batch, done / epochs, epochs)
    return (
        f"extended from {old_epochs} to {epochs} epochs: the learning rate, {before:.3g} at epoch {done:g} of the old "
        f"schedule, goes on from {after:.3g} to {rate_at(config.optim, batch, 1.0, epochs):.3g} over the new one"
    )


def run_pretraining(
    config: Config,
    dataset: Dataset,
    facts: DataFacts,
    method: Method,
    run: RunDirectory,
    device: torch.device,
    console: Console,
    extended_from: int | None = None,
) -> Trainer:
    """Train (or go on training) in `run`, then write what the report needs."""
    main = distributed.is_main()
    torch.backends.cudnn.deterministic = True  # resumed runs must end with the same bits
    if main:
        files.remove_partial_files(run.path)
    ranks = distributed.world_size()
    views = build_views(config, dataset)
    batches = Batches(
        dataset.pretraining, views, config.train.batch_size, config.train.seed, device,
        config.train.drop_last, distributed.rank(), ranks,
    )  # fmt: skip
    checkpoint = load_checkpoint(run.checkpoint_file) if run.checkpoint_file.exists() else None
    if checkpoint is not None and checkpoint.data_fingerprint != dataset.fingerprint:
        raise UserError(
            f"the images of {config.data.source} have changed since the run began; restore them, or start a new run"
        )
    journal = Journal(run.metrics_file, config, checkpoint.step if checkpoint else -1, write=main)
    probe = Probe(config, dataset, views, device)

    def embed_all() -> Tensor:
        split = dataset.pretraining
        return extract_features(method.encoder, split, dataset.statistics, facts.image_size, device)

    trainer = Trainer(config, method, batches, probe, run, journal, console, dataset.fingerprint, embed_all)
    try:
        if checkpoint is not None:
            trainer.restore(checkpoint)
        if main:
            run.write_config(config)  # more epochs, or other values that may change
        if checkpoint is not None:
            console.say(f"resuming {run.path} at step {trainer.step} of {trainer.total_steps}")
        if extended_from is not None:
            console.say(extension_remark(config, extended_from, trainer.step / batches.steps_per_epoch))
        trainer.train()
        trainer.save()
        finished = journal.records[-1:] and journal.records[-1].get("event") == "finished"
        if main and config.log.report and not (finished and run.gallery_file.exists()):
            write_gallery(run, config, method, dataset, facts, views, device)
        if main and not finished:
            journal.write("event", trainer.step, config.train.epochs, event="finished", seconds=trainer.seconds)
    finally:
        journal.close()
    return trainer


def summary(trainer: Trainer) -> list[str]:
    """Last words of a finished run."""
    probes = trainer.journal.of_kind("probe")
    lines = [f"finished epoch {trainer.config.train.epochs} after {duration(trainer.seconds)}"]
    if probes:
        last = probes[-1]
        lines.append(f"prototypes: {last['verdict']}" if "used" in last else f"RankMe {last['rank_me']:.0f}")
        lines += last.get("warnings", [])
        if "knn" in last:
            before = next((r["knn"] for r in probes if r["epoch"] == 0), None)
            start = "" if before is None else f", {before:.1f}% before training"
            lines.append(f"kNN probe (online, {trainer.config.probe.train_images} voters): {last['knn']:.1f}%{start}")
    return lines
