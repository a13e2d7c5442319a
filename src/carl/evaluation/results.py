"""Reads result files without torch: what each score measures, how it was measured, and for which weights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carl.evaluation.protocols import PROTOCOLS
from carl.records.metrics import is_number
from carl.records.run_directory import kept_epoch

PROBE = "probe"  # takes the place of a protocol for scores that are not from result files


@dataclass(frozen=True)
class RunIdentity:
    """What scores must be measured on to stand for a run: its last weights, and its own data."""

    encoder_hash: str  # of encoder.safetensors
    source: str
    fingerprint: str  # "" for runs from before data.json


@dataclass(frozen=True)
class Score:
    """A figure for an encoder, and how it was measured."""

    protocol: str  # as on the command line, or probe
    title: str  # kNN, offline
    name: str  # k = 20
    how: str  # offline: the labelled training images vote ...
    data: str  # name of the file or folder
    value: float  # percent
    random: float | None  # for the same encoder with random weights
    spread: float | None = None  # standard deviation over seeds
    images: str = ""  # the fingerprint of the data, or their full name
    values: str = ""  # hyperparameters, and how many images it learned from and which part of them was seen, as JSON
    encoder: str = ""  # which weights, in words, if they are not the run's last
    shortened: str = ""  # "1 of 100 epochs"
    seen: str = ""  # "whole images", where the protocol has another part of them, or "held-out images"
    own_data: bool = True

    @property
    def gain(self) -> float | None:
        return None if self.random is None else self.value - self.random

    @property
    def label(self) -> str:
        return ", ".join(part for part in (self.title, self.shortened, self.seen, self.name) if part)

    @property
    def asides(self) -> list[str]:
        """Why this score does not stand for the run; nothing if it does."""
        other = "" if self.own_data else f"other data: {self.data}"
        return [reason for reason in (self.encoder, self.shortened, self.seen, other) if reason]

    @property
    def comparable(self) -> bool:
        """Whether it is for the run's last weights, by the whole protocol, on any data."""
        return not self.encoder and not self.shortened

    @property
    def identity(self) -> tuple[str, str, str, str, str]:
        """Scores with the same identity may be compared."""
        return self.title, self.name, self.shortened, self.images, self.values

    @property
    def is_headline(self) -> bool:
        """Whether this figure can stand for an encoder."""
        if self.protocol == PROBE:
            return True
        known = PROTOCOLS.get(self.protocol)
        return known is not None and known.headline != "" and self.name == _figure_name(known.headline)

    @property
    def place(self) -> float:
        """Lower for protocols that say more about an encoder. The probe is a small kNN and comes after kNN."""
        names = list(PROTOCOLS)
        if self.protocol == PROBE:
            return names.index("knn") + 0.5
        return names.index(self.protocol) if self.protocol in PROTOCOLS else len(names)


def read_scores(results: Iterable[dict[str, Any]], run: RunIdentity) -> list[Score]:
    """The scores of trained weights in result files, in order."""
    return in_order(score for result in results for score in _scores(result, run))


def in_order(scores: Iterable[Score]) -> list[Score]:
    """Scores that stand for the run come first; among those, the ones that say most about an encoder."""
    return sorted(scores, key=lambda score: (len(score.asides), score.place))


def most_telling(scores: Sequence[Score]) -> Score | None:
    """The score that says most about an encoder, if one of them can stand for it."""
    return min((score for score in scores if score.is_headline), key=lambda score: score.place, default=None)


def _scores(result: dict[str, Any], run: RunIdentity) -> list[Score]:
    protocol, how = str(result.get("protocol", "evaluation")), str(result.get("kind", ""))
    trained, random = _figures(result, "trained"), _figures(result, "random")
    values = result.get("hyperparameters")
    values = values if isinstance(values, dict) else {}
    source, fingerprint = str(result.get("data", "")), str(result.get("data_fingerprint") or "")
    known = fingerprint and run.fingerprint
    found = []
    for name, entry in trained.items():
        value, spread = _mean_and_spread(entry)
        if value is None:
            continue
        found.append(
            Score(
                protocol=protocol,
                title=_title(protocol, how, values),
                name=_figure_name(str(name)),
                how=how + _rates(values),
                data=Path(source).name,
                value=value,
                random=_mean_and_spread(random.get(name))[0],
                spread=spread,
                images=fingerprint or source,
                values=json.dumps(values | _conditions(protocol, result), sort_keys=True),
                encoder=_other_weights(result, run.encoder_hash),
                shortened=_shortened(protocol, result.get("epochs")),
                seen=_seen(protocol, centre_of(result), result.get("held_out")),
                own_data=fingerprint == run.fingerprint if known else source == run.source,
            )
        )
    return found


def _figure_name(name: str) -> str:
    return f"k = {name}" if name.isdigit() else name


def _conditions(protocol: str, result: dict[str, Any]) -> dict[str, Any]:
    """What else must be the same for two scores to be compared."""
    found = {name: result.get(name) for name in ("train_images", "held_out")} | {"centre": centre_of(result)}
    return found if _usual_epochs(protocol) is None else found | {"crop_min": result.get("crop_min")}


def centre_of(result: dict[str, Any]) -> float:
    """The fraction of each side of an image that was seen. Old files do not say; they are for whole images."""
    centre = result.get("centre")
    return centre if is_number(centre) and centre else 1.0


def _figures(result: dict[str, Any], which: str) -> dict[str, Any]:
    accuracy = result.get("accuracy")
    found = accuracy.get(which) if isinstance(accuracy, dict) else None
    return found if isinstance(found, dict) else {}


def _title(protocol: str, how: str, values: dict[str, Any]) -> str:
    known = PROTOCOLS.get(protocol)
    name = known.title if known is not None else protocol
    title = ", ".join(part for part in (name, how.partition(":")[0]) if part)
    fraction = values.get("fraction")
    if known is not None and known.fractions and is_number(fraction):
        title += f", {100 * fraction:g}% of the labels"
    return title


def _rates(values: dict[str, Any]) -> str:
    rates = values.get("rates")
    if not isinstance(rates, list) or len(rates) < 2:
        return ""
    return f"; the best of the rates {', '.join(map(str, rates))} on a part of the training images"


def _other_weights(result: dict[str, Any], encoder_hash: str) -> str:
    """Which weights were measured, if they are not the run's last."""
    if result.get("encoder_hash") == encoder_hash:
        return ""
    epoch = kept_epoch(str(result.get("target", "")))
    return "other weights than the run's last" if epoch is None else f"weights of epoch {epoch}"


def _usual_epochs(protocol: str) -> int | None:
    known = PROTOCOLS.get(protocol)
    return None if known is None else known.epochs


def _shortened(protocol: str, epochs: object) -> str:
    full = _usual_epochs(protocol)
    return "" if full is None or not is_number(epochs) or epochs == full else f"{epochs} of {full} epochs"


def _seen(protocol: str, centre: float, held_out: object) -> str:
    """Which images were judged, if they are not the test images as the protocol sees them."""
    known = PROTOCOLS.get(protocol)
    usual = 1.0 if known is None else known.centre
    part = "whole images" if centre == 1 else f"the central {100 * centre:g}%"
    return ", ".join([*([part] if centre != usual else []), *(["held-out images"] if held_out else [])])


def _mean_and_spread(entry: Any) -> tuple[float | None, float | None]:
    """A score is a number, or a mean with its standard deviation over seeds."""
    if isinstance(entry, dict):
        mean, spread = entry.get("mean"), entry.get("std")
        return (float(mean) if is_number(mean) else None), (float(spread) if is_number(spread) else None)
    return (float(entry) if is_number(entry) else None), None
