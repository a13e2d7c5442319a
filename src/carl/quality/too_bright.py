"""Too bright: hardly any pixel is not white."""

from __future__ import annotations

from carl.quality.check import Check, Columns, Flagged, Measure, highest

BRIGHT = 0.95  # CleanVision 0.3.7: threshold 0.05 of `light`, for 1 less the 5th percentile of the brightness


def _judge(columns: Columns) -> Flagged:
    return highest(columns["darkest"], BRIGHT)


TOO_BRIGHT = Check(
    title="Too bright",
    meaning="Nearly every pixel is white, as in overexposed photos and blank scans.",
    rule=f"95% of the pixels have a brightness above {BRIGHT} of 1",
    measures={"darkest": Measure("float32", lambda picture: picture.brightness_at(0.05))},
    judge=_judge,
)
