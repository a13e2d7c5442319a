"""From what the user asked for to a finished run directory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from carl import distributed, files
from carl.config import Config, Layer, OptimConfig, differences, merge, resolve
from carl.data.batches.packed import Batches, check_batch_size, check_shares
from carl.data.batches.stream import StreamBatches, check_lanes, choose_lanes
from carl.data.dataset import Dataset, PackedImages, Split
from carl.data.facts import DataFacts
from carl.data.sources.shards import Shards
from carl.errors import UserError
from carl.evaluation.features import frozen, map_images
from carl.methods import Method, find_method
from carl.methods.build import load_data_for
from carl.models.batch_norm import share_batch_norm
from carl.optim import rate_at
from carl.records.run_directory import DataRecord, RunDirectory
from carl.training.checkpoint import load_checkpoint
from carl.training.console import Console, duration
from carl.training.gallery import write_gallery
from carl.training.journal import Journal, check_sinks
from carl.training.loop import Trainer
from carl.training.probe import Probe
from carl.views.configured import build_views, check_views
from carl.views.views import Views

# What may change between the parts of a run: none of it has a say in the weights.
FREE_ON_RESUME = ("log.", "probe.", "train.device", "train.keep_epochs", "train.checkpoint_steps", "data.root")


def plan(layer: Layer) -> tuple[Config, Dataset, DataFacts]:
    """The complete configuration for what the user asked, and the data it is for.

    Everything the user wrote is checked before the data are opened, so that a slip costs no time.
    """
    method = find_method(str(merge([layer]).get("method", {}).get("name", "carl")))
    config = resolve([layer], method.Options)
    check_views(config.views)
    check_text("data.source", config.data.source)
    check_sinks(config.log)
    dataset = load_data_for(config)
    config = completed(layer, DataFacts.of(config.data, dataset))
    facts = DataFacts.of(config.data, dataset)  # the preset may have set the side of the views
    sizes = config.train.batch_size, dataset.training_images, config.train.drop_last
    check_batch_size(*sizes)
    check_shares(*sizes, distributed.launched())  # known before the processes have met
    if dataset.stream is not None:
        config = with_lanes(config, dataset.stream)
    recipes = build_views(config, dataset.statistics.mean, dataset.statistics.std).recipes
    if len(recipes) < method.views_needed:
        raise UserError(
            f"views.pipeline={config.views.pipeline!r} makes {len(recipes)} view of an image, "
            f"{config.method.name} needs {method.views_needed}; use simclr"
        )
    return config, dataset, facts


def completed(layer: Layer, facts: DataFacts) -> Config:
    """What was asked, with the values of the preset for data such as these in all that was not."""
    given = merge([layer])
    method = find_method(str(given.get("method", {}).get("name", "carl")))
    preset = given.get("method", {}).get("preset") or method.default_preset(facts)
    known, chosen = {"data": {"image_size": facts.image_size}}, {"method": {"preset": preset}}
    values = fitting_rates(method.preset(preset, facts), given)
    config = resolve([known, values, given, chosen], method.Options)
    if config.probe.every is None:
        config = resolve([config.model_dump(), {"probe": {"every": max(1, config.train.epochs // 20)}}], method.Options)
    return method.completed(config)


def fitting_rates(preset: Layer, given: Layer) -> Layer:
    """The preset, without its rates where the user chose another optimiser than they are for."""
    optim = dict(preset.get("optim", {}))
    name = optim.get("name", OptimConfig().name)
    if given.get("optim", {}).get("name", name) != name:
        optim = {key: value for key, value in optim.items() if key not in ("name", "lr", "lr_end")}
    return {**preset, "optim": optim}


def check_text(name: str, text: str) -> None:
    """Refuse a path that config.toml, which is UTF-8, cannot hold: file names may be any bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{name}={text!r} is no valid Unicode, so it cannot be noted down; rename the folder") from None


def with_lanes(config: Config, shards: Shards) -> Config:
    """The configuration with the lanes of its stream, which then stay the same for the whole run."""
    batch_size, ranks = config.train.batch_size, distributed.launched()
    if not config.train.drop_last:
        raise UserError("train.drop_last=false would need the rest of every lane of a stream; leave it at true")
    if config.data.lanes is not None:
        check_lanes(config.data.lanes, batch_size, ranks)
        return config
    lanes = choose_lanes(batch_size, len(shards), ranks)
    return config.model_copy(update={"data": config.data.model_copy(update={"lanes": lanes})})


def build_batches(config: Config, dataset: Dataset, views: Views, device: torch.device) -> Batches | StreamBatches:
    """The training batches of this process."""
    train, data, rank, ranks = config.train, config.data, distributed.rank(), distributed.world_size()
    if dataset.stream is None:
        return Batches(
            dataset.pretraining, views, train.batch_size, train.seed, device, train.drop_last, rank, ranks
        )  # fmt: skip
    assert data.lanes is not None
    return StreamBatches(
        dataset.stream, views, train.batch_size, train.seed, device, data.lanes, data.buffer, data.max_bad, rank, ranks
    )


def embed_share(
    function: Callable[[Tensor], Tensor], batches: Batches | StreamBatches, dataset: Dataset, image_size: int
) -> tuple[Tensor, Tensor]:
    """Rows and values of this process's share of the training set. Laid end to end, the shares are all of it, once.

    Packed images come in shuffled order, so that no batch holds neighbours of the file; shards are shuffled already.
    """
    device, statistics = batches.device, dataset.statistics
    if isinstance(batches, Batches):
        rows = np.array_split(batches.order(0), distributed.world_size())[distributed.rank()]
        found = map_images(function, dataset.pretraining, statistics, image_size, device, rows)
        return torch.from_numpy(rows.copy()).to(device), found.to(device)
    packed, numbers, values = dataset.pretraining.images, [], []
    for part, pixels in batches.whole_images(packed.height, packed.width):
        values.append(map_images(function, Split(PackedImages(pixels)), statistics, image_size, device))
        numbers.append(torch.from_numpy(part))
    if not values:
        raise UserError(
            f"{len(batches.shards)} shards leave a process without any when all images are embedded; "
            f"use at most {len(batches.shards)} processes"
        )
    return torch.cat(numbers).to(device), torch.cat(values).to(device)


def shares_batch_norm(config: Config, device: torch.device) -> bool:
    """Whether batch norms see the batch of all processes: by default on GPUs, whose share of it is often small."""
    chosen = config.train.sync_batch_norm
    return device.type == "cuda" if chosen is None else chosen


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
    views = build_views(config, dataset.statistics.mean, dataset.statistics.std)
    batches = build_batches(config, dataset, views, device)
    checkpoint = load_checkpoint(run.checkpoint_file) if run.checkpoint_file.exists() else None
    if checkpoint is not None and checkpoint.data_fingerprint != dataset.fingerprint:
        raise UserError(
            f"the images of {config.data.source} have changed since the run began; restore them, or start a new run"
        )
    distributed.check_agreement("a checkpoint of step", str(checkpoint.step if checkpoint else 0))
    distributed.check_agreement("images with the fingerprint", dataset.fingerprint)
    journal = Journal(run.metrics_file, config, checkpoint.step if checkpoint else -1, write=main)
    probe = Probe(config, dataset, views, device)
    if ranks > 1 and shares_batch_norm(config, device):
        share_batch_norm(method, device)

    def embed_all(function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        with frozen(method):
            return embed_share(function, batches, dataset, facts.image_size)

    trainer = Trainer(config, method, batches, probe, run, journal, console, dataset.fingerprint, embed_all)
    try:
        if checkpoint is not None:
            trainer.restore(checkpoint)
        if main:
            run.write_config(config)  # more epochs, or other values that may change
            run.write_data(DataRecord.of(dataset, facts))
        if checkpoint is not None:
            console.say(f"resuming {run.path} at step {trainer.step} of {trainer.total_steps}")
        if extended_from is not None:
            console.say(extension_remark(config, extended_from, trainer.step / batches.steps_per_epoch))
        trainer.train()
        trainer.save()
        if isinstance(batches, StreamBatches):
            bad = int(distributed.sum_over_processes(torch.tensor([len(batches.bad)], device=device)))
            if bad:
                console.say(f"{bad} images of the stream could not be decoded, others of the batch stood in")
        distributed.stop()  # what is left is the main process's
        finished = journal.records[-1:] and journal.records[-1].get("event") == "finished"
        if main and config.log.report and not (finished and run.gallery_file.exists()):
            write_gallery(run, config, method, dataset, facts, views, device)
        if main and not finished:
            journal.write(
                "event",
                trainer.step,
                config.train.epochs,
                event="finished",
                seconds=trainer.seconds,
                peak_memory_bytes=peak_memory(device),
            )
    finally:
        journal.close()
    return trainer


def peak_memory(device: torch.device) -> int | None:
    """Most memory that this process has had: of the device for CUDA, else resident in RAM; None where unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if Path("/proc/self/status").exists():  # what getrusage says of a child process begins with its parent's memory
        kilobytes = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()
        return 1024 * int(kilobytes[0]) if kilobytes else None
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def summary(trainer: Trainer) -> list[str]:
    """Last words of a finished run."""
    probes = trainer.journal.of_kind("probe")
    lines = [f"finished epoch {trainer.config.train.epochs} after {duration(trainer.seconds)}"]
    if probes:
        last = probes[-1]
        if "used" in last and "verdict" in last:
            lines.append(f"prototypes: {last['verdict']}")
        elif "rank_me" in last:
            lines.append(f"RankMe {last['rank_me']:.0f}")
        lines += last.get("warnings", [])
        if "knn" in last:
            before = next((r["knn"] for r in probes if r["epoch"] == 0), None)
            start = "" if before is None else f", {before:.1f}% before training"
            lines.append(f"kNN probe (online, {trainer.config.probe.train_images} voters): {last['knn']:.1f}%{start}")
    return lines
