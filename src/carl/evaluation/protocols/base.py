"""What a protocol says about itself, and what the user can ask of it. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carl.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from carl.config import Layer
    from carl.evaluation.accuracy import Accuracy
    from carl.evaluation.evaluation_data import EvaluationData
    from carl.methods import Method


TOP_1, TOP_5 = "top-1", "top-5"  # figures of a classifier: the class is its first choice, or among the first five


@dataclass(frozen=True)
class EvaluationRequest:
    """What the user asked `carl eval` for; unset values are the protocol's own."""

    target: str  # a run directory, a weights file, timm:NAME or `random`
    protocol: str = "knn"
    data: str | None = None  # other data than the run's
    fraction: float | None = None  # of the labels
    seeds: int = 1
    epochs: int | None = None
    rates: tuple[float, ...] = ()  # of the linear classifier
    centre: float | None = None  # fraction of each side that is seen of images not cropped at random
    backbone: str | None = None  # of a file or of `random`
    out: Path | None = None  # where results go; the run's own folder if unset
    force: bool = False  # measure again even if there is a result
    settings: Layer = field(default_factory=dict)  # --set


@dataclass(frozen=True)
class Outcome:
    """The outcome for one seed: figures that are averaged and shown, and the rest of the result file."""

    figures: dict[str, float]  # percentages
    details: dict[str, Any]
    right: dict[str, np.ndarray] = field(default_factory=dict)  # of figures that are accuracies: which images (M,)

    @classmethod
    def of(cls, accuracy: Accuracy, details: dict[str, Any]) -> Outcome:
        """The outcome of a classifier."""
        figures = {TOP_1: accuracy.top1, TOP_5: accuracy.top5}
        return cls(figures, {**details, **accuracy.details()}, accuracy.right)


def _no_values(request: EvaluationRequest) -> dict[str, Any]:
    return {}


def _no_check(request: EvaluationRequest) -> None:
    return None


def _no_notes(per_seed: Sequence[dict[str, Any]]) -> list[str]:
    return []


@dataclass(frozen=True)
class Protocol:
    """One way to measure an encoder: its words, its usual values, and the function that measures.

    `measure` gets the encoder, the method (None unless `needs_method`, or if there is none), the images, the request
    and the seed. Where the user may set a value (epochs, fractions, rates), the protocol has its own; those that have
    none refuse the option.
    """

    title: str  # of its scores in reports: kNN
    kind: str  # offline, online or cached, and how; shown with every score, and part of what a result is of
    measure: Callable[[nn.Module, Method | None, EvaluationData, EvaluationRequest, int], Outcome]
    heading: str = ""  # over its table in the terminal, kNN top-1 accuracy; the title if empty
    values: Callable[[EvaluationRequest], dict[str, Any]] = _no_values  # for the result file
    check: Callable[[EvaluationRequest], None] = _no_check  # raises a UserError for values it cannot take
    notes: Callable[[Sequence[dict[str, Any]]], list[str]] = _no_notes  # remarks on the details of the seeds
    headline: str = ""  # the figure to quote where one number must do, if one does
    stands_for_encoder: bool = False  # whether that figure can sum up an encoder in a report
    names_count: str = ""  # what the names of the figures count, if they are numbers
    seeded: bool = True  # whether another seed can give another figure for the same encoder
    beside_random: bool = False  # measured with random weights too, for comparison
    trains_encoder: bool = False  # not only a classifier on its features
    needs_method: bool = False  # the whole method with its prototypes, not the encoder alone
    other_data: bool = False  # only for other data than those the run was trained on
    epochs: int | None = None  # None if nothing is trained on random crops
    fractions: tuple[float, ...] = ()  # parts of the labels, measured one after the other; empty: always all labels
    rates: tuple[float, ...] = ()  # learning rates; empty if the user cannot choose them
    centre: float = 1.0  # fraction of each side that is seen of an image that is not cropped at random
    explained: Mapping[str, str] = field(default_factory=dict)  # values that need words after them, with those words

    def part_seen(self, request: EvaluationRequest) -> float:
        return self.centre if request.centre is None else request.centre


def parse_rates(text: str | None) -> tuple[float, ...]:
    """`30,3,0.3` as numbers."""
    try:
        return () if text is None else tuple(float(rate) for rate in text.split(","))
    except ValueError:
        raise UserError(f"--rates {text!r} is not a list of numbers; use for example 30,3,0.3") from None
