"""What a quality check is: its words, what it measures of an image, and which images of a set it flags.

Measuring sees one image while it is decoded, and gives a number or a short text: these are columns of the file of
embeddings. Judging sees the columns of all images, because some flags depend on what is usual. An example:

    def _judge(columns):
        return lowest(columns["height"], below=64)

    TINY = Check(
        title="Tiny",
        meaning="The image is lower than 64 pixels.",
        rule="height below 64 pixels",
        measures={"height": HEIGHT},
        judge=_judge,
    )
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from carl.quality.picture import Picture

Value = float | int | str
Columns = Mapping[str, np.ndarray]  # (N,) of each measure, one value per image


@dataclass(frozen=True)
class Measure:
    """One value of an image."""

    kind: Literal["float32", "int32", "text"]
    of: Callable[[Picture], Value]


@dataclass(frozen=True, eq=False)
class Flagged:
    """The images that a check found, the clearest cases first."""

    rows: np.ndarray  # (F,)
    values: np.ndarray  # (F,) what decided, in the unit of the check's rule
    sets: tuple[np.ndarray, ...] = field(default=())  # for copies: rows that belong together, in order


@dataclass(frozen=True)
class Check:
    """A quality check. `rule` states the threshold in plain words."""

    title: str  # as a heading: "Too dark"
    meaning: str  # one sentence on what it means, and what to do
    rule: str
    measures: Mapping[str, Measure]  # by column
    judge: Callable[[Columns], Flagged]


WIDTH = Measure("int32", lambda picture: picture.width)
HEIGHT = Measure("int32", lambda picture: picture.height)


def lowest(values: np.ndarray, below: float) -> Flagged:
    """The rows whose value is below a threshold, the lowest first."""
    rows = np.flatnonzero(values < below)
    rows = rows[np.argsort(values[rows], kind="stable")]
    return Flagged(rows, values[rows])


def highest(values: np.ndarray, above: float) -> Flagged:
    """The rows whose value is above a threshold, the highest first."""
    found = lowest(-values, -above)
    return Flagged(found.rows, -found.values)
