"""The plan of a run: from what was asked and the data, everything the run needs, each thing worked out once.

Nothing is computed on a device here and nothing is written except the cache of the data.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from carl import distributed, files
from carl.config import Config, Layer, OptimConfig, differences, merge, resolve
from carl.data.batches.build import settled
from carl.data.dataset import UNLABELLED, Dataset
from carl.data.facts import DataFacts
from carl.errors import UserError
from carl.methods import find_method
from carl.methods.build import load_data_for, read_config, with_absolute_paths
from carl.records.run_directory import RunDirectory
from carl.training.journal import check_sinks
from carl.views.configured import build_views, check_views
from carl.views.operations import OPERATIONS
from carl.views.views import Views

# What may change when a run is resumed: none of it affects the weights.
FREE_ON_RESUME = ("log.", "probe.", "train.device", "train.keep_epochs", "train.checkpoint_steps", "data.root")


@dataclass(frozen=True)
class PretrainRequest:
    """What was asked, as `carl pretrain` and `carl.pretrain` hand it over."""

    layer: Layer  # the values that were given, by section of the configuration
    out: Path | None = None  # run directory
    resume: str | None = None  # a run directory to resume, or `auto`: resume `out` if it is a run
    command: tuple[str, ...] = ()  # recorded in environment.json


@dataclass(frozen=True)
class Plan:
    """Everything that a run needs."""

    config: Config  # complete
    dataset: Dataset
    facts: DataFacts
    views: Views
    notes: tuple[str, ...]  # what the user should know before the training begins
    command: tuple[str, ...]
    out: Path | None  # directory of a new run; None: `runs/DATA-METHOD`, with a number if that is taken
    resumed: RunDirectory | None = None  # the run to resume; None starts a new one
    extended_from: int | None = None  # the epochs that the resumed run had, if it gets more

    @property
    def run_name(self) -> str:
        """What a new run is called if the user names no directory."""
        return files.portable_name(f"{Path(self.config.data.source).stem}-{self.config.method.name}")

    def in_words(self) -> str:
        """One line about the method, the data and the length of the training."""
        config, facts = self.config, self.facts
        prototypes = find_method(config.method.name).prototype_count(config)
        parts = [
            f"{config.method.name} ({config.method.preset} preset) on {facts.name}: {facts.images} images",
            f"views of {facts.image_size} px",
            config.model.backbone + ("" if config.model.stem == "imagenet" else " (small stem)"),
            *([f"{prototypes} prototypes"] if prototypes else []),
            f"{config.train.epochs} epoch{'' if config.train.epochs == 1 else 's'}",
            f"batch {config.train.batch_size}",
        ]
        return ", ".join(parts)


def plan(request: PretrainRequest) -> Plan:
    """The plan for a request, which starts a new run or resumes one."""
    layer = with_absolute_paths(request.layer)
    run = run_to_resume(request)
    if run is None:
        check_start(request)
        config, dataset = configured(layer)
        extended_from = None
    else:
        config, dataset, extended_from = reopened(run, layer)
    method, facts = find_method(config.method.name), DataFacts.of(config.data, dataset)
    return Plan(
        config=config,
        dataset=dataset,
        facts=facts,
        views=checked_views(config, dataset),
        notes=(*dataset.notes, *remarks_on_data(config, dataset, facts), *method.remarks(config, facts)),
        command=request.command,
        out=request.out,
        resumed=run,
        extended_from=extended_from,
    )


def run_to_resume(request: PretrainRequest) -> RunDirectory | None:
    """The run to resume: the one that is named, or --out if it exists and --resume auto or torchrun asks for it."""
    out, resume = request.out, request.resume
    if resume is not None and resume != "auto" and out is not None:
        raise UserError(f"--resume {resume} goes on in its own directory; leave out --out {out}")
    if resume is not None and resume != "auto":
        return RunDirectory.open(Path(resume))
    if resume == "auto" and out is None:
        raise UserError("--resume auto needs to know the run; add --out RUN")
    goes_on = resume == "auto" or distributed.restarted()
    return RunDirectory.open(out) if goes_on and out is not None and (out / "config.toml").exists() else None


def check_start(request: PretrainRequest) -> None:
    """Refuse a request that cannot start a run, before the data are opened."""
    if not request.layer.get("data", {}).get("source"):
        raise UserError("no DATA given; name a data set, a folder or a file, for example: carl pretrain shapes")
    if request.out is not None:
        RunDirectory.check_free(request.out)
    elif int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")):
        raise UserError("with --max-restarts a process that is started again must find its run; add --out RUN")


def configured(layer: Layer) -> tuple[Config, Dataset]:
    """The complete configuration of a new run, and the data it is for.

    Everything the user wrote is checked before the data are opened, so that a slip costs no time.
    """
    method = find_method(str(merge([layer]).get("method", {}).get("name", "carl")))
    config = resolve([layer], method.Options)
    check_views(config.views)
    check_text("data.source", config.data.source)
    check_sinks(config.log)
    dataset = load_data_for(config)
    config = completed(layer, DataFacts.of(config.data, dataset))
    ranks = distributed.launched()  # known before the processes have met
    return config.model_copy(update={"data": settled(config.data, config.train, dataset, ranks)}), dataset


def completed(layer: Layer, facts: DataFacts) -> Config:
    """The values that were asked for; the preset for this kind of data gives all others."""
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
    """The preset, without its learning rates if the user chose another optimiser than the preset's."""
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
        raise UserError(
            f"{name}={text!r} is not valid Unicode, so config.toml cannot hold it; rename the folder"
        ) from None


def reopened(run: RunDirectory, layer: Layer) -> tuple[Config, Dataset, int | None]:
    """A run's configuration with the user's changes, its data, and its former number of epochs if that grows."""
    stored = read_config(run)
    config = resolve([stored.model_dump(), layer], find_method(stored.method.name).Options)
    check_resumable(stored, config)
    if config.data.image_size is None:
        raise UserError(f"{run.config_file} is not complete, it lacks data.image_size; restore it, or start a new run")
    dataset = load_data_for(config)
    return config, dataset, stored.train.epochs if config.train.epochs > stored.train.epochs else None


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


def checked_views(config: Config, dataset: Dataset) -> Views:
    """The views that training sees, as many as the method needs."""
    views = build_views(config, dataset.statistics.mean, dataset.statistics.std)
    needed = find_method(config.method.name).views_needed
    if len(views.recipes) < needed:
        raise UserError(
            f"views.pipeline={config.views.pipeline!r} makes {len(views.recipes)} view of an image, "
            f"{config.method.name} needs {needed}; use simclr"
        )
    return views


def remarks_on_data(config: Config, dataset: Dataset, facts: DataFacts) -> list[str]:
    """What the user may not expect of views and a limit on these data."""
    remarks = []
    if facts.channels != 3:
        many = "1 channel" if facts.channels == 1 else f"{facts.channels} channels"
        coloured = ", ".join(name for name, kind in OPERATIONS.items() if kind.needs_colour)
        remarks.append(f"images have {many}: {coloured} need red, green and blue and are left out")
    labels = dataset.pretraining.labels
    if config.data.limit is not None and labels is not None and dataset.pretraining.labelled:
        found, known = len(set(labels[labels != UNLABELLED].tolist())), len(dataset.class_names)
        if found < known:
            remarks.append(f"the first {len(labels)} images (data.limit) are of {found} of the {known} classes")
    return remarks
