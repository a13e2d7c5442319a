"""What is evaluated: the encoder of a run, other weights that exist, or random weights, asked for as `random`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from carl import files
from carl.config import Config, Layer, ModelConfig, merge, resolve
from carl.data.dataset import Dataset, Statistics
from carl.data.facts import DataFacts
from carl.defaults import METHOD, RANDOM
from carl.errors import UserError
from carl.evaluation.protocols import EvaluationRequest
from carl.framing import Framing
from carl.methods import Method, find_method
from carl.methods.build import random_encoder, without_init
from carl.methods.run_config import read_config, with_absolute_paths
from carl.methods.training_data import load_data_for
from carl.models.encoders import build_encoder
from carl.models.pretrained import PretrainedWeights, check_backbone, find_weights, usual_backbone
from carl.models.state_dicts import load_weights, put_into
from carl.models.weights import check_finite, read_weights_into, weights_hash
from carl.records.run_directory import DataRecord, RunDirectory
from carl.views.configured import check_views

DEVICE = ("train", "device")


@dataclass(frozen=True)
class Target:
    """An encoder by its configuration and its weights."""

    name: str  # as the user gave it
    config: Config  # data and encoder; those of the run where there is one
    run: RunDirectory | None
    weights: Path | None  # of a run
    head: Path | None  # of a run: projection head and prototypes
    pretrained: PretrainedWeights | None = None  # other weights: of a file, or of timm

    @property
    def is_random(self) -> bool:
        return self.weights is None and self.pretrained is None

    @property
    def first_seed(self) -> int:
        """The first seed of the evaluation, and of random weights. A run's training seed does not matter here."""
        return 0 if self.run is not None else self.config.train.seed

    def label(self, encoder_hash: str) -> str:
        """A name for result files."""
        if self.pretrained is not None:  # many files are called encoder.safetensors
            return f"{files.portable_name(Path(self.name).stem)}-{encoder_hash[:8]}"
        if self.weights is None:
            return f"random-{self.config.model.backbone}"
        if self.run is not None and self.weights == self.run.encoder_file:
            return f"{self.run.path.resolve().name}-{encoder_hash[:8]}"  # runs elsewhere may have the same name
        return f"{self.weights.stem}-{encoder_hash[:8]}"


def find_target(request: EvaluationRequest) -> Target:
    """The target that the user named, with the data to evaluate it on in its configuration."""
    path = Path(request.target)
    is_random = request.target == RANDOM and not RunDirectory(path).exists
    run = None if is_random else RunDirectory.containing(path)
    if run is not None:
        return _target_in_run(request, run)
    known = merge([request.settings]).get("model", {}).get("backbone")
    backbone = request.backbone or (None if known is None else str(known))
    pretrained = None if is_random else find_weights(request.target, backbone or usual_backbone(request.target))
    if request.data is None:
        raise UserError(
            f"{request.target} does not say which data it was trained on; give --data, for example --data cifar10"
        )
    data: dict[str, str] = {"source": request.data}
    model: dict[str, str] = {} if backbone is None else {"backbone": backbone}
    if pretrained is not None:
        data["interpolation"] = pretrained.wanted.framing.interpolation
        model = {"backbone": pretrained.backbone, "stem": pretrained.stem}
    given: Layer = {"data": data, "model": model}
    config = resolve([with_absolute_paths(merge([given, request.settings]))], find_method(METHOD).Options)
    check_views(config.views)
    return Target(request.target, config, run=None, weights=None, head=None, pretrained=pretrained)


def _target_in_run(request: EvaluationRequest, run: RunDirectory) -> Target:
    config, path, settings = read_config(run), Path(request.target), request.settings
    check_backbone(request.backbone, config.model.backbone, run.path)
    fixed = [f"{s}.{key}" for s, values in settings.items() for key in values if s != "data" and (s, key) != DEVICE]
    if fixed:
        raise UserError(f"--set {fixed[0]}: a run keeps its own values; only data.* and train.device may change")
    # The limits that a run set on its own data do not apply to other data, and it may have been trained elsewhere.
    elsewhere = {"source": request.data, "limit": None, "held_out": 0, "root": None, "views_from": "auto"}
    other: Layer = {} if request.data is None else {"data": elsewhere}
    anywhere: Layer = {"train": {"device": "auto"}}
    merged = merge([config.model_dump(), with_absolute_paths(merge([other])), anywhere, settings])
    config = resolve([merged], find_method(config.method.name).Options)
    weights = run.trained_encoder(None if path.is_dir() else path)
    return Target(request.target, config, run, weights, run.head_of(weights))


def packed_side(target: Target) -> int | None:
    """The side to which photos are packed: for weights with a framing, the one from which they see the middle."""
    asked = target.config.data.image_size
    if target.pretrained is None:
        return asked
    wanted = target.pretrained.wanted
    return round((asked or wanted.image_size) / wanted.framing.seen)


def resizing_for(target: Target, image_size: int, centre: float) -> Framing | None:
    """How images are brought to `image_size` for weights with a framing of their own, and their `centre` is cut out."""
    if target.pretrained is None or target.pretrained.wanted.framing.scaled is None:
        return None
    side = math.floor(image_size / centre)
    return dataclasses.replace(
        target.pretrained.wanted.framing, height=image_size, width=image_size, scaled=(side, side)
    )


def facts_for(target: Target, dataset: Dataset) -> DataFacts:
    """The facts about the data, with the size of images that the encoder sees."""
    facts = DataFacts.of(target.config.data, dataset)
    if target.pretrained is None or target.config.data.image_size is not None:
        return facts
    return dataclasses.replace(facts, image_size=target.pretrained.wanted.image_size)


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
    if target.pretrained is not None:
        wanted = target.pretrained.wanted
        return Statistics(wanted.mean, wanted.std), f"of the weights ({target.pretrained.origin})"
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
    if target.pretrained is not None:
        put_into(encoder, target.pretrained.state(facts.channels, facts.image_size), target.name)
    return encoder.to(device)


def load_untrained(target: Target, facts: DataFacts, device: torch.device) -> nn.Module:
    """The same encoder with random weights: those a run began with, or those of seed 0."""
    if target.run is not None:
        return random_encoder(target.config, facts, device)
    return load_encoder(Target(target.name, target.config, None, None, None), facts, device)


def load_start(run: RunDirectory, config: Config, facts: DataFacts, device: torch.device) -> nn.Module | None:
    """The encoder that the run started from; None if it started from random weights."""
    if not run.start_file.is_file():
        return None
    return load_encoder(Target(str(run.path), config, run, weights=run.start_file, head=None), facts, device)


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
