"""Reads result files without torch: what each score measures, how it was measured, and for which weights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from carl.evaluation.intervals import Interval, Judged, difference, interval, unpacked
from carl.evaluation.protocols import PROTOCOLS
from carl.evaluation.protocols.base import TOP_1, TOP_5
from carl.records.metrics import is_number
from carl.records.run_directory import LAST, kept_epoch

ACCURACIES = (TOP_1, TOP_5)  # figures that are accuracies; so are those named after a number of neighbours
MOST_IMAGES = 10**8  # of a test set; a file that claims more is not believed
TRAINED, UNTRAINED, AT_START = "trained", "random", "start"  # in a result file: whose figures they are
GAINS = {"gain": UNTRAINED, "gain_over_start": AT_START}  # name in a result file: what the gain is over
RANDOM_WEIGHTS, START = "random weights", "the start"  # what an encoder is compared with, in words
NOT_KEPT = "adapted, not kept"  # what a run trained if it kept the encoder that it started from
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
    start: float | None = None  # for the encoder that the run started from
    spread: float | None = None  # standard deviation over seeds
    interval: Interval | None = None  # 95%; None for figures that are not accuracies, and for probes
    gain_interval: Interval | None = None  # of the gain
    judged: Judged | None = field(default=None, compare=False, repr=False)  # to compare it with another score
    random_judged: Judged | None = field(default=None, compare=False, repr=False)
    start_judged: Judged | None = field(default=None, compare=False, repr=False)
    images: str = ""  # the fingerprint of the data, or their full name
    values: str = ""  # hyperparameters, and how many images it learned from and which part of them was seen, as JSON
    encoder: str = ""  # which weights, in words, if they are not the run's last
    shortened: str = ""  # "1 of 100 epochs"
    seen: str = ""  # "whole images", where the protocol has another part of them, or "held-out images"
    own_data: bool = True
    whose: str = ""  # which encoder a probe saw, in words, if it is not the one that the run keeps

    @property
    def baseline(self) -> float | None:
        """What the user had before: the encoder that the run started from, or else random weights."""
        return self.random if self.start is None else self.start

    @property
    def baseline_name(self) -> str:
        return RANDOM_WEIGHTS if self.start is None else START

    @property
    def gain(self) -> float | None:
        """Points over the baseline."""
        return None if self.baseline is None else self.value - self.baseline

    @property
    def gain_is_clear(self) -> bool:
        """False if the gain may be chance."""
        return self.gain_interval is None or self.gain_interval.is_clear

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
        return known is not None and known.stands_for_encoder and self.name == _figure_name(known.headline)

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


def over_seeds(scores: Sequence[Score]) -> Score:
    """One score for several seeds of one method: the mean, and intervals over test images and seeds."""
    first = scores[0]
    judged = [score.judged for score in scores if score.judged is not None]
    if len(scores) == 1 or len(judged) < len(scores):
        return first
    together = Judged.together(judged)
    random, start = (
        Judged.together(known) if len(known) == len(scores) else None
        for known in (
            [score.random_judged for score in scores if score.random_judged is not None],
            [score.start_judged for score in scores if score.start_judged is not None],
        )
    )
    baseline = random if start is None else start
    return replace(
        first,
        value=together.accuracy,
        random=None if random is None else random.accuracy,
        start=None if start is None else start.accuracy,
        spread=float(np.std([score.value for score in scores], ddof=1)),
        interval=interval(together),
        gain_interval=None if baseline is None else difference(together, baseline),
        judged=together,
        random_judged=random,
        start_judged=start,
    )


def in_order(scores: Iterable[Score]) -> list[Score]:
    """Scores that stand for the run come first; among those, the ones that say most about an encoder."""
    return sorted(scores, key=lambda score: (len(score.asides), score.place))


def most_telling(scores: Sequence[Score]) -> Score | None:
    """The score that says most about an encoder, if one of them can stand for it."""
    return min((score for score in scores if score.is_headline), key=lambda score: score.place, default=None)


def _scores(result: dict[str, Any], run: RunIdentity) -> list[Score]:
    protocol, how = str(result.get("protocol", "evaluation")), str(result.get("kind", ""))
    trained, random, start = (_figures(result, which) for which in (TRAINED, UNTRAINED, AT_START))
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
                start=_mean_and_spread(start.get(name))[0],
                spread=spread,
                interval=interval_of(result, TRAINED, str(name)),
                gain_interval=interval_of(result, "gain_over_start" if name in start else "gain", str(name)),
                judged=judged_of(result, TRAINED, str(name)),
                random_judged=judged_of(result, UNTRAINED, str(name)),
                start_judged=judged_of(result, AT_START, str(name)),
                images=fingerprint or source,
                values=json.dumps(values | _conditions(protocol, result), sort_keys=True),
                encoder=_other_weights(result, run.encoder_hash),
                shortened=_shortened(protocol, result.get("epochs")),
                seen=_seen(protocol, centre_of(result), result.get("held_out")),
                own_data=fingerprint == run.fingerprint if known else source == run.source,
            )
        )
    return found


def interval_of(result: dict[str, Any], which: str, name: str) -> Interval | None:
    """The 95% interval of a figure of weights or of a gain (GAINS); None if it is not an accuracy.

    Old files hold no intervals: theirs follow from the percentage and the number of test images.
    """
    value = _gain(result, which, name) if which in GAINS else _mean_and_spread(_figures(result, which).get(name))[0]
    if value is None:
        return None
    ends = _table(_table(result, "intervals"), which).get(name)
    if isinstance(ends, list) and len(ends) == 2 and all(map(is_number, ends)):
        return Interval(value, float(ends[0]), float(ends[1]))
    if which not in GAINS:
        judged = judged_of(result, which, name)
        return None if judged is None else interval(judged)
    trained, other = (judged_of(result, one, name) for one in (TRAINED, GAINS[which]))
    return None if trained is None or other is None else difference(trained, other)


def judged_of(result: dict[str, Any], which: str, name: str) -> Judged | None:
    """Which test images were right, for each seed; in no known order for old files, None for other figures."""
    value, images = _mean_and_spread(_figures(result, which).get(name))[0], result.get("test_images")
    if value is None or not (name.isdigit() or name in ACCURACIES) or not 0 <= value <= 100:
        return None
    if not isinstance(images, int) or not 0 < images <= MOST_IMAGES:
        return None
    texts = _table(_table(result, "correct"), which).get(name)
    rows = [unpacked(text, images) for text in texts] if isinstance(texts, list) else []
    right = [row for row in rows if row is not None]
    fingerprint = result.get("data_fingerprint")
    if not right or len(right) < len(rows):
        return Judged.counted(value, images)
    known = f"{fingerprint}, {images}, {result.get('held_out')}" if fingerprint else ""
    return Judged(np.stack(right), known)


def _table(values: dict[str, Any], name: str) -> dict[str, Any]:
    found = values.get(name)
    return found if isinstance(found, dict) else {}


def _gain(result: dict[str, Any], gain: str, name: str) -> float | None:
    trained, other = (_mean_and_spread(_figures(result, which).get(name))[0] for which in (TRAINED, GAINS[gain]))
    return None if trained is None or other is None else trained - other


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
    target = str(result.get("target", ""))
    if Path(target).name == LAST:
        return NOT_KEPT
    epoch = kept_epoch(target)
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
