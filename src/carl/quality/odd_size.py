"""Odd size: the image is much smaller or larger than is usual in the set."""

from __future__ import annotations

import numpy as np

from carl.quality.check import HEIGHT, WIDTH, Check, Columns, Flagged

FENCE = 3.0  # interquartile ranges beyond the quartiles; CleanVision 0.3.7: `iqr_factor` of `odd_size`
# Ours: where nearly all images have one size, the range is nothing, and a difference of one pixel is not odd.
FACTOR = 2.0


def _judge(columns: Columns) -> Flagged:
    """Rows with the side of a square of the same area, those that differ most first.

    Sides are compared as logarithms, which CleanVision does not do: where sizes vary, its lower fence is below zero
    pixels, and no image is ever too small.
    """
    sides = np.sqrt(columns["width"].astype(np.float64) * columns["height"])
    logs = np.log2(sides)
    low, middle, high = np.quantile(logs, (0.25, 0.5, 0.75))
    margin = FENCE * (high - low)
    least = np.log2(FACTOR)
    odd = ((logs < low - margin) | (logs > high + margin)) & (np.abs(logs - middle) >= least)
    rows = np.flatnonzero(odd)
    rows = rows[np.argsort(-np.abs(logs[rows] - middle), kind="stable")]
    return Flagged(rows, sides[rows])


ODD_SIZE = Check(
    title="Odd size",
    meaning="The image is much smaller or larger than the others, as icons and thumbnails among photos are.",
    rule=(
        f"the side differs from the median by a factor of {FACTOR:g} or more, and is {FENCE:g} interquartile ranges "
        "beyond the quartiles"
    ),
    measures={"width": WIDTH, "height": HEIGHT},
    judge=_judge,
)
