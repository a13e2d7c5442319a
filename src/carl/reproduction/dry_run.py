"""The dry run: every value that decides an outcome, to be checked line by line against the paper's appendix."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import nn

from carl.config import Config, resolve
from carl.data.facts import DataFacts
from carl.data.open import recognised_name
from carl.defaults import RANDOM
from carl.evaluation.protocols import EvaluationRequest, find_protocol
from carl.evaluation.protocols.linear import MOCO_CROP
from carl.methods import find_method
from carl.methods.base import value_in_words
from carl.optim import peak_rate
from carl.records.known_data import KNOWN_DATA
from carl.reproduction.jobs import Job
from carl.reproduction.recipes import protocol_in_words
from carl.training.plan import completed
from carl.views.configured import build_views
from carl.views.recipes import ViewRecipe
from carl.views.views import Views

Values = dict[str, str]


def assumed_facts(job: Job) -> DataFacts:
    """What the job's data are in the paper, without opening them."""
    data = job.layer["data"]
    name = recognised_name(str(data["source"]))
    facts = DataFacts.known(name if name in KNOWN_DATA else "shapes")
    labelled = job.trains and find_method(str(job.layer["method"]["name"])).needs_labels
    images = KNOWN_DATA[facts.name].labelled if labelled else facts.images
    return replace(facts, name=name, images=min(images, data.get("limit") or images))


def resolved_config(job: Job) -> Config:
    """The job's whole configuration, assuming the paper's data sets."""
    return completed(job.layer, assumed_facts(job))


def assumed_views(config: Config) -> Views:
    """The run's views, with made-up normalisation: the data are not opened here."""
    return build_views(config, (0.5,) * 3, (0.25,) * 3)


def overview_lines(jobs: Sequence[Job]) -> list[str]:
    """The values that all runs share, then for each run the others, then how the runs are evaluated."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.name.rpartition("/seed-")[0], []).append(job)
    values = {name: deciding_values(found[0]) for name, found in groups.items()}
    common = _common([values[name] for name, found in groups.items() if found[0].trains])
    lines = [f"Common to all {sum(job.trains for job in jobs)} training runs", *_rows(common)]
    for name, found in groups.items():
        seeds = ", ".join(job.name.rpartition("-")[2] for job in found)
        lines += ["", f"{name}   (seed{'s' * (len(found) > 1)} {seeds})"]
        lines += _rows({key: value for key, value in values[name].items() if common.get(key) != value})
    return [*lines, "", "Evaluation", *_protocol_rows(jobs)]


def _common(found: Sequence[Values]) -> Values:
    first = found[0] if found else {}
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in found)}


def _rows(values: Mapping[str, str]) -> list[str]:
    return [f"  {name:<24} {value}" for name, value in values.items()]


def deciding_values(job: Job) -> Values:
    """Every value that decides the outcome of a run, in words; values without effect are left out."""
    measured = {"measured by": ", ".join(measure.key for measure in job.measures)}
    if not job.trains:
        return {"weights": "random, untrained", **measured}
    return {**values_in_words(resolved_config(job), assumed_facts(job)), **measured}


def values_in_words(config: Config, facts: DataFacts) -> Values:
    """Every value of a training that decides its outcome, the data included."""
    optim, train = config.optim, config.train
    peak = peak_rate(optim, train.batch_size)
    views = assumed_views(config).recipes
    images = {
        "data": facts.name,
        "images": f"{facts.images:,}",
        "image size": f"{facts.image_size} px",
        "normalised by": "mean and deviation of each channel of the training images",
    }
    lines = dict.fromkeys(view.in_words() for view in views)
    shown = {f"view {_view_numbers(line, views)}": line for line in lines}
    rate = f"{peak:g} to {optim.lr_end * peak / optim.lr:g}, {optim.schedule}"
    scaled = f" ({optim.lr:g} x {train.batch_size} / 256)" if optim.scale_lr else ""
    optimiser: Values = {
        "optimiser": optim.name,
        "learning rate": rate + scaled,
        "warm-up": f"{optim.warmup_epochs:g} epochs",
        "momentum": f"{optim.momentum:g}",
        "weight decay": f"{optim.weight_decay:g}, {'not on' if optim.exclude == '1d' else 'also on'} biases and norms",
        **({"LARS coefficient": f"{optim.trust_coefficient:g}"} if optim.name == "lars" else {}),
        **({"gradient clipped at": f"{optim.clip:g}"} if optim.clip else {}),
    }
    return {
        **images,
        **shown,
        "encoder": f"{config.model.backbone}, {config.model.stem} stem, from {config.model.init or 'random weights'}",
        **head_in_words(config, facts),
        "method": config.method.name,
        **{f"  {name}": value for name, value in find_method(config.method.name).values_in_words(config).items()},
        **optimiser,
        "batch": f"{train.batch_size}" + ("" if train.drop_last else ", the last smaller"),
        "epochs": f"{train.epochs}",
        "precision": train.precision,
        **({"encoders kept at": ", ".join(map(str, train.keep_epochs))} if train.keep_epochs else {}),
    }


def _view_numbers(line: str, views: Sequence[ViewRecipe]) -> str:
    return ", ".join(str(place) for place, view in enumerate(views, start=1) if view.in_words() == line)


def head_in_words(config: Config, facts: DataFacts) -> Values:
    """The layers after the encoder, without the prototypes, as they are built: the head, and what a method adds."""
    model = config.model.model_copy(update={"init": None})
    layers = _head(config.method.name, model.model_dump_json(), config.method.model_dump_json(), facts)
    linear = [place for place, layer in enumerate(layers) if layer.startswith("linear")]
    end = linear[model.hidden_layers] + 1 if len(linear) > model.hidden_layers else len(layers)
    more = {"after the head": ", ".join(layers[end:])} if layers[end:] else {}
    return {"head": ", ".join(layers[:end]) or "none", **more}


@cache
def _head(name: str, model: str, method: str, facts: DataFacts) -> tuple[str, ...]:
    kind = find_method(name)
    data = {"source": facts.name, "image_size": facts.image_size}
    config = resolve([{"data": data, "model": json.loads(model), "method": json.loads(method)}], kind.Options)
    with torch.device("meta"):
        head = kind(config, facts).head
    parts = []
    for name, module in head.named_modules():
        if "prototypes" in name:
            continue
        if isinstance(module, nn.Linear):
            parts.append(f"linear {module.in_features}-{module.out_features}")
        elif isinstance(module, nn.BatchNorm1d):
            parts.append("batch norm")
        elif isinstance(module, nn.ReLU):
            parts.append("ReLU")
    return tuple(parts)


def _protocol_rows(jobs: Sequence[Job]) -> list[str]:
    """The values of each protocol that is used, one per line."""
    asked = dict.fromkeys((m.protocol, m.fraction, m.epochs) for job in jobs for m in job.measures)
    lines = []
    for protocol, fraction, epochs in asked:
        known = find_protocol(protocol)
        request = EvaluationRequest(RANDOM, protocol, fraction=fraction, epochs=epochs)
        lines.append(f"  {protocol_in_words(protocol, epochs or known.epochs, fraction)}: {known.kind}")
        values = {
            f"  {key.replace('_', ' ')}": f"{value_in_words(value)} {known.explained.get(key, '')}".rstrip()
            for key, value in known.values(request).items()
        }
        if known.epochs is not None:
            crops = sorted({resolved_config(job).views.crop_min or MOCO_CROP for job in jobs if job.trains})
            values["  smallest crop"] = f"{value_in_words(crops)} of the area"
        values["  seen of each side"] = f"{100 * known.centre:g}% in the centre" if known.centre < 1 else "all"
        lines += _rows(values)
    return lines
