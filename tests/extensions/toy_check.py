"""A quality check: images with a red corner."""

from __future__ import annotations

from carl.quality import Check, Columns, Flagged, Measure, Picture
from carl.quality.check import highest


def _judge(columns: Columns) -> Flagged:
    return highest(columns["corner"], 250)


def _corner(picture: Picture) -> float:
    return float(picture.bands[0][0, 0])


TOY_CHECK = Check(
    title="Red corner",
    meaning="The first pixel is red.",
    rule="its red is above 250 of 255",
    measures={"corner": Measure("float32", _corner)},
    judge=_judge,
)
