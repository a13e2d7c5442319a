"""A page about an exported encoder: what it was trained on and how, what it expects, how well it did."""

from __future__ import annotations

import json
import re
from itertools import groupby
from pathlib import Path
from typing import Any

from carl.errors import printable
from carl.evaluation.results import RunIdentity, Score, read_scores
from carl.methods.run_config import read_config
from carl.records.regular_files import read_text
from carl.records.weights_hash import file_hash
from carl.use.encoder import TrainedModel, UsableEncoder

# What the publishers of the data say; none of it is legal advice.
LICENCES = {
    "shapes": "drawn by this package (MIT)",
    "cifar10": "none stated by its authors; Krizhevsky (2009) asks to be cited",
    "cifar100": "none stated by its authors; Krizhevsky (2009) asks to be cited",
    "stl10": "none stated; the images are from ImageNet, whose terms allow non-commercial research",
    "tiny-imagenet": "ImageNet's terms: non-commercial research and education",
    "imagenet64": "ImageNet's terms: non-commercial research and education",
}


def model_card(
    usable: UsableEncoder, form: str, usage: str, *, features: int, normalised: bool, difference: float
) -> str:
    """The card in Markdown: of a run with its training and results, of other weights with where they are from."""
    made = f"exported as {form}"
    if usable.trained is not None:
        return _card_of_run(
            usable.trained, made, usage, features=features, normalised=normalised, difference=difference
        )
    lines = [
        f"# {usable.model.backbone} from {_as_text(usable.origin)}",
        "",
        f"An image encoder of {features} features, {made} from {_as_code(usable.name)}, without any training here.",
        "",
        *_use(usage),
        *_expected_input(usable, normalised),
        "",
        "## Weights",
        "",
        f"- origin: {_as_text(usable.origin)}",
        f"- licence: {_as_text(usable.licence)}",
        f"- backbone: {usable.model.backbone} (timm), stem {usable.model.stem}",
        "",
        f"Checked after writing: features differ by at most {difference:.1e} from those of the encoder.",
        "",
    ]
    return "\n".join(lines)


def _use(usage: str) -> list[str]:
    return ["## Use", "", "```python", usage, "```", ""]


def _card_of_run(
    trained: TrainedModel, made: str, usage: str, *, features: int, normalised: bool, difference: float
) -> str:
    config, data, init = trained.config, trained.data, _init(trained)
    supervised = trained.method.needs_labels
    name = _as_code(Path(data.name).name)
    method = ", ".join(f"{key} {value}" for key, value in _method_values(trained).items())
    run = _as_code(trained.run.path.name)
    if trained.run.last_file.is_file():
        title = f"# {config.model.backbone}, which training on {name} with {config.method.name} made no better"
        first = (
            f"An image encoder of {features} features, {made} from the run {run}. Training made it no better, so these "
            "are the weights that the run started from. What follows on training is about that attempt."
        )
    else:
        title = f"# {config.model.backbone} trained on {name} with {config.method.name}"
        first = (
            f"An image encoder of {features} features, learned {'with' if supervised else 'without'} labels by the "
            f"method `{config.method.name}` and {made} from the run {run}."
        )
    lines = [
        title,
        "",
        first,
        "",
        *_use(usage),
        *_expected_input(trained, normalised),
        "",
        "## Data",
        "",
        f"- source: {name}, {data.images} images, fingerprint {_as_code(data.fingerprint)}",
        f"- licence: {LICENCES.get(data.name, 'not known to this package; the one of the images applies')}",
        "",
        "## Training",
        "",
        f"- method: {config.method.name} ({method})",
        f"- {config.train.epochs} epochs, batch {config.train.batch_size}, {config.optim.name}, seed "
        f"{config.train.seed}, views `{config.views.pipeline}` of {data.image_size} px",
        f"- backbone: {config.model.backbone} (timm), stem {config.model.stem}, started from "
        f"{'random weights' if init is None else _as_code(init)}",
        *_started_from(trained),
        *_environment(trained),
        "",
        "## Results",
        "",
        *_results(trained),
        "",
        f"Checked after writing: features differ by at most {difference:.1e} from those of the run.",
        "",
    ]
    return "\n".join(lines)


def _as_code(name: str) -> str:
    """A name as code, in which nothing is Markdown or HTML: a folder may have any name."""
    longest = max((len(ticks) for ticks in re.findall("`+", name)), default=0)
    fence, space = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{space}{printable(name)}{space}{fence}"


def _as_text(words: str) -> str:
    """Words that someone else may have written into a file of the run, with nothing left that is Markdown or HTML."""
    return re.sub(r"[\\`*_\[\]<>&]", r"\\\g<0>", printable(words))


def _expected_input(usable: UsableEncoder, normalised: bool) -> list[str]:
    framing, side = usable.framing, usable.image_size
    mean, std = (", ".join(f"{value:.4f}" for value in values) for values in (usable.mean, usable.std))
    channels = "RGB" if usable.channels == 3 else f"{usable.channels} channels"
    values = (
        "in [0, 1]; the graph subtracts the mean and divides by the standard deviation itself"
        if normalised
        else f"(x - mean) / std of x in [0, 1], with mean = [{mean}] and std = [{std}]"
    )
    if framing.scaled is None:
        first = f"scaled ({framing.interpolation}) to cover {framing.height} x {framing.width} px and centrally cut"
    else:
        ways = {"cut": "to cover", "stretch": "to", "pad": "to fit into"}
        first = (
            f"scaled ({framing.interpolation}) {ways[framing.fit]} {framing.scaled[0]} x {framing.scaled[1]} px, then "
            f"centrally cut to {framing.height} x {framing.width} px"
        )
    second = "" if (side, side) == framing.shape else f", then scaled to {side} x {side} (antialiased)"
    return [
        f"- input: `images`, float32 (B, {usable.channels}, {side}, {side}), {channels}, {values}",
        f"- to give the features of `carl embed`, images are {first}{second}",
        "- output: pooled features, not normalised; compare them by cosine similarity",
    ]


def _method_values(trained: TrainedModel) -> dict[str, Any]:
    values = trained.config.method.model_dump(mode="json", exclude_none=True)
    return {key: value for key, value in values.items() if key != "name"}


def _init(trained: TrainedModel) -> str | None:
    return read_config(trained.run).model.init  # the loaded configuration is without it


def _started_from(trained: TrainedModel) -> list[str]:
    """Where the weights that the run started from came from, and their licence, which may bind its own."""
    found = trained.run.read_environment().get("started_from")
    if not isinstance(found, dict):
        return []
    origin, licence = (str(found.get(key, "not known")) for key in ("origin", "licence"))
    return [f"- starting weights: {_as_text(origin)}; licence: {_as_text(licence)}"]


def _environment(trained: TrainedModel) -> list[str]:
    try:
        found = json.loads(read_text(trained.run.environment_file))
        packages = found["packages"]
        made = ", ".join(f"{name} {packages[name]}" for name in ("carl-ssl", "torch", "timm"))
        return [f"- made with {_as_text(made)} on {_as_text(found['device'])}: {_as_code(' '.join(found['command']))}"]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _results(trained: TrainedModel) -> list[str]:
    """The results of `carl eval` for these weights: every accuracy with its protocol, label and data."""
    record = trained.run.read_data()
    identity = RunIdentity(
        encoder_hash=file_hash(trained.run.encoder_file),
        source=read_config(trained.run).data.source,
        fingerprint="" if record is None else record.fingerprint,
    )
    found = read_scores(_result_files(trained), identity)
    own = [score for score in found if not score.encoder]
    lines = [
        _line(list(together))
        for _, together in groupby(own, lambda m: (m.identity[2:], m.title, m.how, m.spread is None))
    ]
    return lines or ["Not evaluated yet: `carl eval RUN` does that."]


def _result_files(trained: TrainedModel) -> list[dict[str, Any]]:
    found = []
    for path in sorted(trained.run.results.glob("*.json")):
        try:
            found.append(json.loads(read_text(path)))
        except (ValueError, RecursionError):
            continue  # damaged by other hands: `carl eval` measures again
    return [result for result in found if isinstance(result, dict)]


def _line(together: list[Score]) -> str:
    """The figures of one protocol."""
    first = together[0]
    label = ", ".join(part for part in (first.title, first.shortened, first.seen) if part)
    figures = ", ".join(f"{_as_text(score.name)} {_figure(score)}" for score in together)
    how = first.how.partition(": ")[2] or first.how
    return f"- {_as_text(label)}, on {_as_code(first.data)}: {figures}; {_as_text(how)}"


def _figure(score: Score) -> str:
    spread = "" if score.spread is None else f" \u00b1 {score.spread:.2f}"
    before = "" if score.baseline is None else f" ({score.baseline_name} {score.baseline:.2f}%)"
    return f"{score.value:.2f}%{spread}{before}"
