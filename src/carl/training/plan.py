"""The plan of a run: from what was asked and the data, everything the run needs, each thing worked out once.

Nothing is computed on a device here and nothing is written except the cache of the data.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from carl import distributed, files, launch
from carl.config import Config, Layer, OptimConfig, TrainConfig, differences, merge, resolve
from carl.data.batches.base import TrainingBatches
from carl.data.batches.build import settled, training_batches
from carl.data.dataset import UNLABELLED, Dataset, Statistics
from carl.data.facts import DataFacts
from carl.defaults import ADAPT, ADAPT_METHOD, METHOD, PROBES
from carl.device import pick_device
from carl.errors import UserError
from carl.methods import METHODS, find_method
from carl.methods.base import Method
from carl.methods.run_config import read_config, with_absolute_paths
from carl.methods.training_data import load_data_for
from carl.models.pretrained import PretrainedWeights
from carl.precision import settled_precision
from carl.records.run_directory import RunDirectory
from carl.training.budget import (
    Pace,
    follows_speed,
    remark_on_data,
    remark_on_speed,
    shorter_lengths,
    usual_batch_size,
    usual_epochs,
)
from carl.training.budget import remarks as budget_remarks
from carl.training.journal import check_sinks
from carl.training.starting_weights import (
    StartedFrom,
    remarks_on_weights,
    side_of_views,
    side_to_pack,
    starting_weights,
    with_their_values,
    without_normalisation,
)
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
    # Whether a slow machine gets fewer epochs where nothing says how many. Runs that are compared must have the same.
    fit_time: bool = False


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
    started_from: StartedFrom | None = None  # the weights of a new run, if they are not random
    extended_from: int | None = None  # the epochs that the resumed run had, if it gets more
    open_length: Layer | None = None  # what was given, if the speed may lower the number of epochs; None: it may not

    @property
    def run_name(self) -> str:
        """What a new run is called if the user names no directory."""
        return files.portable_name(f"{Path(self.config.data.source).stem}-{self.config.method.name}")

    def batches(self, device: torch.device) -> TrainingBatches:
        """The batches of this process."""
        return training_batches(
            self.dataset,
            self.views,
            train=self.config.train,
            data=self.config.data,
            device=device,
            rank=distributed.rank(),
            ranks=distributed.world_size(),
        )

    def in_words(self) -> str:
        """One line about the method, the data and the length of the training."""
        config, facts = self.config, self.facts
        prototypes = find_method(config.method.name).prototype_count(config)
        parts = [
            f"{config.method.name} ({config.method.preset} preset) on {facts.name}: {facts.images} images",
            f"views of {facts.image_size} px",
            config.model.backbone + ("" if config.model.stem == "imagenet" else " (small stem)"),
            *([f"{prototypes} prototypes"] if prototypes else []),
            config.train.length_in_words,
            f"batch {config.train.batch_size}",
        ]
        return ", ".join(parts)


def plan(request: PretrainRequest) -> Plan:
    """The plan for a request, which starts a new run or resumes one."""
    layer = with_absolute_paths(request.layer)
    run = run_to_resume(request)
    if run is None:
        check_start(request)
        config, dataset, weights, given = configured(layer)
        extended_from = None
    else:
        config, dataset, extended_from = reopened(run, layer)
        weights, given = None, None  # those of the run go on
    method, facts = find_method(config.method.name), DataFacts.of(config.data, dataset)
    is_open = request.fit_time and epochs_are_usual(layer, config, facts) and follows_speed(facts, config.train.epochs)
    return Plan(
        config=config,
        dataset=dataset,
        facts=facts,
        views=checked_views(config, dataset),
        notes=(
            *dataset.notes,
            *remarks_on_weights(weights, facts.image_size, config.data.mean is not None),
            *(remarks_on_method(layer, config, method, facts) if run is None else ()),
            *remarks_on_data(config, dataset, facts),
            *(remarks_on_length(layer, config, facts) if run is None else ()),
            *method.remarks(config, facts),
        ),
        command=request.command,
        out=request.out,
        resumed=run,
        started_from=StartedFrom.of(weights),
        extended_from=extended_from,
        open_length=given if is_open else None,
    )


def fitted(plan: Plan, pace: Pace) -> Plan:
    """The plan of a run whose length is open, with as many epochs as this machine has the time for.

    All that follows from the number is worked out again. The preset stays, and a number that other values do not allow,
    such as a longer warm-up, gives way to the next larger one.
    """
    assert plan.open_length is not None, "the number of epochs is given"
    facts, most, method = plan.facts, plan.config.train.epochs, find_method(plan.config.method.name)
    for epochs in shorter_lengths(most, pace):
        fixed: Layer = {"train": {"epochs": epochs}, "method": {"preset": plan.config.method.preset}}
        try:
            config = completed(merge([plan.open_length, fixed]), facts)
        except UserError:
            continue
        outdated = {remark_on_data(most, facts), *method.remarks(plan.config, facts)}
        notes = (
            *(note for note in plan.notes if note not in outdated),
            *method.remarks(config, facts),
            remark_on_speed(epochs, most, pace),
        )
        config = config.model_copy(update={"data": plan.config.data})
        return dataclasses.replace(plan, config=config, notes=notes, open_length=None)
    return plan


def run_to_resume(request: PretrainRequest) -> RunDirectory | None:
    """The run to resume: the one that is named, or --out if it exists and --resume auto or torchrun asks for it."""
    out, resume = request.out, request.resume
    if resume is not None and resume != "auto" and out is not None:
        raise UserError(f"--resume {resume} continues in its own directory; leave out --out {out}")
    if resume is not None and resume != "auto":
        return RunDirectory.open(Path(resume))
    if resume == "auto" and out is None:
        raise UserError("--resume auto needs to know the run; add --out RUN")
    goes_on = resume == "auto" or launch.attempt() > 0
    return RunDirectory.open(out) if goes_on and out is not None and RunDirectory(out).exists else None


def check_start(request: PretrainRequest) -> None:
    """Refuse a request that cannot start a run, before the data are opened."""
    if not request.layer.get("data", {}).get("source"):
        raise UserError("no DATA given; name a data set, a folder or a file, for example: carl pretrain shapes")
    if request.out is not None:
        RunDirectory.check_free(request.out)
    elif launch.may_restart():
        raise UserError("with --max-restarts a process that is started again must find its run; add --out RUN")


def configured(layer: Layer) -> tuple[Config, Dataset, PretrainedWeights | None, Layer]:
    """The complete configuration of a new run, the data it is for, the weights that it starts from, and what was given.

    What was given includes the values that these weights bring along.

    Everything the user wrote is checked before the data are opened, so that a slip costs no time.
    """
    method = find_method(method_asked(layer))
    config = resolve([layer], method.Options)
    check_views(config.views)
    check_text("data.source", config.data.source)
    check_sinks(config.log)
    weights = starting_weights(layer)
    layer = with_their_values(layer, weights)
    config, dataset = _with_data(resolve([layer], method.Options), weights)
    if method.pairs_images and dataset.stream is not None:
        raise UserError(
            f"--method {config.method.name} shows images beside their neighbours, and shards are read in order; give "
            f"{config.data.source} as a folder, a Parquet file or arrays"
        )
    if config.data.mean is None and weights is not None:  # images of other channels than the weights'
        layer = without_normalisation(layer)
    config = completed(layer, DataFacts.of(config.data, dataset))
    ranks = launch.processes()  # known before the processes have met
    data = settled(config.data, config.train, dataset, ranks)
    return config.model_copy(update={"data": data}), dataset, weights, layer


def _with_data(config: Config, weights: PretrainedWeights | None) -> tuple[Config, Dataset]:
    """The data, packed for the weights; and the configuration with the size and normalisation that both allow."""

    def changed(**values: object) -> Config:
        return config.model_copy(update={"data": config.data.model_copy(update=values)})

    if weights is None:
        return config, load_data_for(config)
    dataset = load_data_for(changed(image_size=side_to_pack(config, weights), mean=None, std=None))
    mean, std = config.data.mean, config.data.std
    if mean is None or std is None or len(mean) != dataset.train.images.channels:
        mean, std = None, None
    else:
        dataset = dataclasses.replace(dataset, statistics=Statistics(mean, std))
    return changed(image_size=side_of_views(config, weights, dataset), mean=mean, std=std), dataset


def completed(layer: Layer, facts: DataFacts) -> Config:
    """The values that were asked for; the preset for this kind of data gives all others."""
    given = merge([layer])
    method = find_method(method_asked(given))
    has_start = given.get("model", {}).get("init") is not None
    preset = given.get("method", {}).get("preset") or method.usual_preset(facts, epochs_asked(given, facts), has_start)
    known, chosen = {"data": {"image_size": facts.image_size}}, {"method": {"preset": preset}}
    values = fitting_rates(method.preset(preset, facts), given)
    usual = usual_length(merge([values, given]), facts)
    length = length_of_steps(merge([values, usual, given]), facts)
    config = resolve([known, values, usual, given, length, chosen], method.Options)
    if config.probe.every is None:
        config = resolve(
            [config.model_dump(), {"probe": {"every": max(1, config.train.epochs // PROBES)}}], method.Options
        )
    precision = settled_precision(config.train.precision, pick_device(config.train.device).type)
    return method.completed(_with_precision(config, precision))


def method_asked(layer: Layer) -> str:
    """The method that is named; otherwise the one that adapts best for a run with a start, or else CARL.

    CARL stays the usual method of a run with a start too if another preset than `adapt` is asked for, or a value that
    is CARL's alone, such as --prototypes.
    """
    given = merge([layer])
    method = given.get("method", {})
    if "name" in method:
        return str(method["name"])
    if given.get("model", {}).get("init") is None or (method.get("preset") or ADAPT) != ADAPT:
        return METHOD
    adapting, usual = (set(METHODS[name].Options.model_fields) for name in (ADAPT_METHOD, METHOD))
    return METHOD if method.keys() & (usual - adapting) else ADAPT_METHOD


def _with_precision(config: Config, precision: str) -> Config:
    return config.model_copy(update={"train": config.train.model_copy(update={"precision": precision})})


def epochs_of_steps(steps: int, batch_size: int, images: int, drop_last: bool) -> int:
    """The epochs that so many steps begin."""
    return math.ceil(steps / max(1, images // batch_size if drop_last else math.ceil(images / batch_size)))


def length_of_steps(values: Layer, facts: DataFacts) -> Layer:
    """The epochs of a run whose steps are given. A value of another kind is refused by `resolve`."""
    train = {**TrainConfig().model_dump(), **values.get("train", {})}
    steps, batch_size = train["steps"], train["batch_size"]
    if not (isinstance(steps, int) and isinstance(batch_size, int) and steps > 0 and batch_size > 0):
        return {}
    return {"train": {"epochs": epochs_of_steps(steps, batch_size, facts.images, bool(train["drop_last"]))}}


def epochs_asked(given: Layer, facts: DataFacts) -> int:
    """The epochs that the user asks for, or the usual number. A value of another kind is refused by `resolve`."""
    train = {**TrainConfig().model_dump(), **given.get("train", {})}
    length = length_of_steps(given, facts)
    asked = length["train"]["epochs"] if length else given.get("train", {}).get("epochs")
    return asked if isinstance(asked, int) else usual_epochs(facts, pick_device(str(train["device"])).type)


def usual_length(values: Layer, facts: DataFacts) -> Layer:
    """The epochs, if `values` do not say how many, and the batch size that the preset's or the usual one becomes.

    What the user gives comes after it.
    """
    train = {**TrainConfig().model_dump(), **values.get("train", {})}
    found: dict[str, int] = {}
    if "epochs" not in values.get("train", {}):
        found["epochs"] = usual_epochs(facts, pick_device(str(train["device"])).type)
    if isinstance(train["batch_size"], int) and isinstance(train["accumulate"], int):  # otherwise `resolve` says so
        smallest = max(2 * launch.processes(), train["accumulate"])
        found["batch_size"] = usual_batch_size(train["batch_size"], facts.images, smallest)
    return {"train": found}


def remarks_on_length(layer: Layer, config: Config, facts: DataFacts) -> list[str]:
    """What was chosen because neither the user nor the preset said how long the run and how large a batch is."""
    before = {**TrainConfig().model_dump(), **_given_or_preset(layer, config, facts)}["batch_size"]
    return budget_remarks(config.train, facts, epochs_are_usual(layer, config, facts), before)


def epochs_are_usual(layer: Layer, config: Config, facts: DataFacts) -> bool:
    """Whether neither the user nor the preset said how long the run is."""
    return "epochs" not in _given_or_preset(layer, config, facts) and config.train.steps is None


def _given_or_preset(layer: Layer, config: Config, facts: DataFacts) -> Mapping[str, object]:
    """The values of `train` that the user or the preset gave."""
    preset = find_method(config.method.name).preset(config.method.preset, facts)
    return merge([preset, layer]).get("train", {})


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
    if config.train.precision == "auto":  # means what it was when the run began, whatever this machine is
        config = _with_precision(config, stored.train.precision)
    check_resumable(stored, config)
    if config.data.image_size is None:
        raise UserError(f"{run.config_file} is not complete, it lacks data.image_size; restore it, or start a new run")
    dataset = load_data_for(config)
    return config, dataset, stored.train.epochs if config.train.epochs > stored.train.epochs else None


def check_resumable(stored: Config, asked: Config) -> None:
    """Refuse a change that would make the rest of a run another run; more epochs are allowed."""
    changed = [line for line in differences(stored, asked) if not line.startswith(FREE_ON_RESUME)]
    changed = [
        line
        for line in changed
        if not line.startswith("train.epochs")
        or asked.train.epochs < stored.train.epochs
        or stored.train.steps is not None
    ]
    if changed:
        raise UserError(
            f"the run was made with another configuration ({'; '.join(changed)}); "
            "resume it without these changes, or start a new run with another --out"
        )


def checked_views(config: Config, dataset: Dataset) -> Views:
    """The views that training sees, as many as the method needs."""
    views = build_views(config, dataset.statistics.mean, dataset.statistics.std)
    method, made = find_method(config.method.name), len(views.recipes)
    large = sum(recipe.size == config.data.image_size for recipe in views.recipes)
    if large < method.views_needed:
        remedy = "use simclr" if config.views.count is None else f"set views.count={method.views_needed} or more"
        raise UserError(
            f"views.pipeline={config.views.pipeline!r} makes {large} large view of an image, "
            f"{config.method.name} needs {method.views_needed}; {remedy}"
        )
    asked = config.views.count is not None or config.views.small_count is not None
    if asked and method.most_views is not None and made > method.most_views:
        others = " or ".join(name for name, other in METHODS.items() if other.most_views is None)
        raise UserError(
            f"{made} views of an image are asked for (views.count, views.small_count), and {config.method.name} "
            f"compares {method.most_views}; ask for {method.most_views}, or use {others}"
        )
    return views


def remarks_on_method(layer: Layer, config: Config, method: type[Method], facts: DataFacts) -> list[str]:
    """Which method adapts an encoder if none is named, or that the named one has no values for an encoder that exists.

    Values for random weights make a good encoder worse.
    """
    if config.model.init is None:
        return []
    if "name" not in merge([layer]).get("method", {}) and config.method.name == ADAPT_METHOD:
        return [
            f"{ADAPT_METHOD} adapts the encoder, because it gained more than {METHOD} in our measurements; "
            f"--method {METHOD} is possible too"
        ]
    if method.needs_labels or ADAPT in method.presets(facts):
        return []
    return [
        f"{config.method.name} has no preset for an encoder that exists, so all its layers learn as if from the "
        f"beginning; --method {ADAPT_METHOD} has one ({ADAPT})"
    ]


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
            which = "the first " if config.data.limit_by == "first" else ""
            remarks.append(f"{which}{len(labels)} images (data.limit) are of {found} of the {known} classes")
    return remarks
