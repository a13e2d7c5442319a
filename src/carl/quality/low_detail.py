"""Low detail: a few shades make up the whole image."""

from __future__ import annotations

from carl.quality.check import Check, Columns, Flagged, Measure, lowest

# CleanVision 0.3.7: threshold 0.3 of `low_information`, for a tenth of the entropy. Pillow counts the shades of the
# three colours together, so that 1.6 of these bits only tell the colours apart.
BITS = 3.0
SHADES = Measure("float32", lambda picture: float(picture.small.entropy()))


def _judge(columns: Columns) -> Flagged:
    return lowest(columns["shades"], BITS)


LOW_DETAIL = Check(
    title="Low detail",
    meaning="A few shades make up the whole image, as in blank pages, plain drawings and placeholders.",
    rule=f"the entropy of the shades of red, green and blue is below {BITS:g} bits",
    measures={"shades": SHADES},
    judge=_judge,
)
