"""Blurry: no sharp edge anywhere."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageFilter

from carl.quality.check import Check, Columns, Flagged, Measure, lowest
from carl.quality.low_detail import BITS, SHADES
from carl.quality.picture import Picture, quantile

SIDE = 64  # px: longest side at which edges are looked for; CleanVision 0.3.7, MAX_RESOLUTION_FOR_BLURRY_DETECTION
SHARP = 68.0  # of 255; ours, because the measure is: see results/quality for what it finds
PART = 0.995  # of the pixels


def sharpest(picture: Picture) -> float:
    """The edge strength that PART of the pixels do not exceed: Pillow's FIND_EDGES of the image in grey, at SIDE.

    CleanVision takes the standard deviation, which is small for a bird before the sky too, however sharp the bird is.
    The outermost pixels do not count: the filter passes them through, so a bright image would seem sharper than a dark.
    """
    grey = picture.grey
    ratio = max(grey.size) / SIDE
    if ratio > 1:
        size = max(1, int(grey.width / ratio)), max(1, int(grey.height / ratio))
        grey = grey.resize(size, Image.Resampling.BICUBIC)
    if min(grey.size) < 3:
        return 255.0  # nothing can be said about a line of pixels
    found = grey.filter(ImageFilter.FIND_EDGES).crop((1, 1, grey.width - 1, grey.height - 1))
    return float(quantile(np.bincount(np.asarray(found).reshape(-1), minlength=256), PART))


def _judge(columns: Columns) -> Flagged:
    plain = columns["shades"] < BITS  # has nothing that could be sharp, and a flag of its own
    return lowest(np.where(plain, np.inf, columns["sharpest"]), SHARP)


BLURRY = Check(
    title="Blurry",
    meaning="Even at the size of a thumbnail no edge is sharp: out of focus, shaken, enlarged, or only haze and sky.",
    rule=f"at {SIDE} pixels, {PART:.1%} of the pixels have an edge weaker than {SHARP:g} of 255",
    measures={"sharpest": Measure("float32", sharpest), "shades": SHADES},
    judge=_judge,
)
