"""Too dark: hardly any pixel is bright."""

from __future__ import annotations

from carl.quality.check import Check, Columns, Flagged, Measure, lowest

DARK = 0.32  # CleanVision 0.3.7: threshold of `dark`, for the 99th percentile of the brightness


def _judge(columns: Columns) -> Flagged:
    return lowest(columns["brightest"], DARK)


TOO_DARK = Check(
    title="Too dark",
    meaning="Nearly every pixel is dark, so little can be made out. Night shots are normal; a covered lens is not.",
    rule=f"99% of the pixels have a brightness below {DARK} of 1",
    measures={"brightest": Measure("float32", lambda picture: picture.brightness_at(0.99))},
    judge=_judge,
)
