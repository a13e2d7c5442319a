"""Odd shape: the image is a strip."""

from __future__ import annotations

import numpy as np

from carl.quality.check import HEIGHT, WIDTH, Check, Columns, Flagged, lowest

RATIO = 0.35  # CleanVision 0.3.7: threshold of `odd_aspect_ratio`


def _judge(columns: Columns) -> Flagged:
    width, height = columns["width"].astype(np.float64), columns["height"].astype(np.float64)
    return lowest(np.minimum(width / height, height / width), RATIO)


ODD_ASPECT = Check(
    title="Odd shape",
    meaning="The image is a long strip. An encoder sees only its middle, or sees it squeezed.",
    rule=f"the shorter side is less than {RATIO:.0%} of the longer one",
    measures={"width": WIDTH, "height": HEIGHT},
    judge=_judge,
)
