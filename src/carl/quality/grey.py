"""Grey among colour: an image without colours where most have some."""

from __future__ import annotations

import numpy as np

from carl.quality.check import Check, Columns, Flagged, Measure
from carl.quality.picture import Picture, quantile

TINT = 8.0  # of 255; ours: JPEG gives a grey photo saved in colour a tint of a few levels
MOST = 0.5  # ours: if more than this part is grey, grey is what is usual


def tint(picture: Picture) -> float:
    """How far apart red, green and blue are, of 255: the distance that 99% of the pixels do not exceed."""
    red, green, blue = picture.bands
    highest, lowest = np.maximum(np.maximum(red, green), blue), np.minimum(np.minimum(red, green), blue)
    return float(quantile(np.bincount((highest - lowest).reshape(-1), minlength=256), 0.99))


def _judge(columns: Columns) -> Flagged:
    grey = columns["tint"] <= TINT
    rows = np.flatnonzero(grey) if grey.mean() <= MOST else np.empty(0, np.int64)
    rows = rows[np.argsort(columns["tint"][rows], kind="stable")]
    return Flagged(rows, columns["tint"][rows])


GREY = Check(
    title="Grey among colour",
    meaning="The image has no colours although most others do. An encoder may take that for what matters about it.",
    rule=f"in 99% of the pixels red, green and blue differ by at most {TINT:g} of 255, and most images have colours",
    measures={"tint": Measure("float32", tint)},
    judge=_judge,
)
