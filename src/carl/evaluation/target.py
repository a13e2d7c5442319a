"""What is evaluated: the encoder of a run, a file of weights, or random weights, asked for as `random`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from carl.config import Config, Layer, ModelConfig, merge, resolve
from carl.data.dataset import Dataset, Statistics
from carl.data.facts import DataFacts
from carl.errors import UserError
from carl.evaluation.protocols import EvaluationRequest
from carl.methods import Method, find_method
from carl.methods.build import load_data_for, random_encoder, read_config, with_absolute_paths, without_init
from carl.models.encoders import build_encoder, load_weights, read_weights
from carl.models.weights import check_finite, read_weights_into, weights_hash
from carl.records.run_directory import DataRecord, RunDirectory
from carl.views.configured import check_views

RANDOM = "random"
DEVICE = ("train", "device")


@dataclass(frozen=True)
class Target:
    """An encoder by its configuration and its weights."""

    name: str  # as the user gave it
    config: Config  # data and encoder; those of the run where there is one
    run: RunDirectory | None
    weights: Path | None  # None is random weights
    head: Path | None  # of a run: projection head and prototypes

    @property
    def is_random(self) -> bool:
        return self.weights is None

    @property
    def first_seed(self) -> int:
        """The first seed of the evaluation, and of random weights. A run's training seed does not matter here."""
        return 0 if self.run is not None else self.config.train.seed

    def label(self, encoder_hash: str) -> str:
        """A name for result files."""
        if self.weights is None:
            return f"random-{self.config.model.backbone}"
        if self.run is not None and self.weights == self.run.encoder_file:
            return f"{self.run.path.resolve().name}-{encoder_hash[:8]}"  # runs elsewhere may have the same name
        return f"{self.weights.stem}-{encoder_hash[:8]}"  # many files are called encoder.safetensors


def find_target(request: EvaluationRequest) -> Target:
    """The target that the user named, with the data to evaluate it on in its configuration."""
    path = Path(request.target)
    is_random = request.target == RANDOM and not RunDirectory(path).exists
    run = None if is_random else RunDirectory.containing(path)
    if run is not None:
        return _target_in_run(request, run)
    if not is_random and (path.is_dir() or not path.exists()):
        RunDirectory.open(path)  # says what is wrong with it
    if request.data is None:
        raise UserError(
            f"{request.target} does not say which data it was trained on; give --data, for example --data cifar10"
        )
    model = {} if request.backbone is None else {"backbone": request.backbone}
    given: Layer = {"data": {"source": request.data}, "model": model}
    config = resolve([with_absolute_paths(merge([given, request.settings]))], find_method("carl").Options)
    check_views(config.views)
    if is_random:
        return Target(request.target, config, None, None, None)
    return Target(request.target, _with_fitting_stem(config, path), None, path, None)


def _target_in_run(request: EvaluationRequest, run: RunDirectory) -> Target:
    config, path, settings = read_config(run), Path(request.target), request.settings
    if request.backbone is not None and request.backbone != config.model.backbone:
        raise UserError(
            f"--backbone {request.backbone} is not that of {run.path}, {config.model.backbone}; leave it out"
        )
    fixed = [f"{s}.{key}" for s, values in settings.items() for key in values if s != "data" and (s, key) != DEVICE]
    if fixed:
        raise UserError(f"--set {fixed[0]}: a run keeps its own values; only data.* and train.device may change")
    # The limits that a run set on its own data do not apply to other data, and it may have been trained elsewhere.
    elsewhere = {"source": request.data, "limit": None, "held_out": 0, "root": None, "views_from": "auto"}
    other: Layer = {} if request.data is None else {"data": elsewhere}
    anywhere: Layer = {"train": {"device": "auto"}}
    merged = merge([config.model_dump(), with_absolute_paths(merge([other])), anywhere, settings])
    config = resolve([merged], find_method(config.method.name).Options)
    weights = run.encoder_file if path.is_dir() else path
    if not weights.is_file():
        raise UserError(f"{run.path} has no encoder.safetensors yet; train it first: carl pretrain --resume {run.path}")
    return Target(request.target, config, run, weights, run.head_of(weights))


def _with_fitting_stem(config: Config, weights: Path) -> Config:
    """The configuration with the small stem if the weights have it: its first kernel is smaller."""
    first = next((value for key, value in read_weights(weights).items() if key.endswith("conv1.weight")), None)
    if first is None or first.ndim != 4 or first.shape[-1] != 3 or not config.model.backbone.startswith("resnet"):
        return config
    return config.model_copy(update={"model": config.model.model_copy(update={"stem": "small"})})


def own_record(target: Target) -> DataRecord | None:
    """What the run recorded about its training data, if it is a run that did."""
    return None if target.run is None else target.run.read_data()


def statistics_for(target: Target, dataset: Dataset) -> tuple[Statistics, str]:
    """The normalisation that the encoder was trained with, and in words where it is from."""
    record, whose = own_record(target), "of the run's training images"
    if record is not None:
        return Statistics(record.mean, record.std), whose
    if target.run is not None:  # from before runs wrote data.json
        return load_data_for(read_config(target.run)).statistics, whose
    return dataset.statistics, "of the evaluated data's training images"


def load_encoder(target: Target, facts: DataFacts, device: torch.device, seed: int = 0) -> nn.Module:
    """The encoder with its weights; random ones only if the target is random."""
    model: ModelConfig = without_init(target.config).model
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    encoder = build_encoder(model, facts.channels, facts.image_size)
    torch.set_rng_state(state)
    if target.weights is not None:
        load_weights(encoder, target.weights)
        check_finite(target.weights, encoder)
    return encoder.to(device)


def load_untrained(target: Target, facts: DataFacts, device: torch.device) -> nn.Module:
    """The same encoder with random weights: those a run began with, or those of seed 0."""
    if target.run is not None:
        return random_encoder(target.config, facts, device)
    return load_encoder(Target(target.name, target.config, None, None, None), facts, device)


def load_method(target: Target, facts: DataFacts, device: torch.device) -> Method | None:
    """The run's whole method, with its prototypes; None without a run or its head."""
    if target.run is None or target.weights is None or target.head is None or not target.head.is_file():
        return None
    record = own_record(target)
    config = without_init(target.config)
    method = find_method(config.method.name)(config, facts if record is None else DataFacts.recorded(record))
    load_weights(method.encoder, target.weights)
    read_weights_into(target.head, method.head)
    return method.to(device)


@contextmanager
def unchanged(encoder: nn.Module) -> Iterator[str]:
    """Gives the hash of the weights. Fails if they or the batch-norm statistics have changed at the end."""
    before = weights_hash(encoder)
    yield before
    if weights_hash(encoder) != before:
        raise RuntimeError("the evaluation changed the encoder; its result is void, please report this")
