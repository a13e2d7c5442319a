"""What may be wrong with an image, seen while it is decoded; no torch.

The checks are those that people know from CleanVision. The code is our own, because CleanVision would decode every
file once more; here a check looks at the image that is decoded for the encoder anyway. docs/quality.md says where the
rules differ.

A new check is a file in this folder and a line in `CHECKS`.
"""

from __future__ import annotations

from carl.quality.blurry import BLURRY
from carl.quality.check import Check, Columns, Flagged, Measure, Value
from carl.quality.exact_copies import EXACT_COPIES
from carl.quality.grey import GREY
from carl.quality.low_detail import LOW_DETAIL
from carl.quality.near_copies import NEAR_COPIES
from carl.quality.odd_aspect import ODD_ASPECT
from carl.quality.odd_size import ODD_SIZE
from carl.quality.picture import Picture
from carl.quality.too_bright import TOO_BRIGHT
from carl.quality.too_dark import TOO_DARK

__all__ = ["CHECKS", "Check", "Columns", "Flagged", "Measure", "Picture", "Value", "judge", "measure", "measures"]

CHECKS: dict[str, Check] = {  # in the order in which a page shows them
    "dark": TOO_DARK,
    "bright": TOO_BRIGHT,
    "blurry": BLURRY,
    "low-detail": LOW_DETAIL,
    "odd-size": ODD_SIZE,
    "odd-shape": ODD_ASPECT,
    "grey": GREY,
    "exact-copies": EXACT_COPIES,
    "near-copies": NEAR_COPIES,
}


def measures() -> dict[str, Measure]:
    """All columns that the checks need, each once."""
    return {name: one for check in CHECKS.values() for name, one in check.measures.items()}


def measure(picture: Picture) -> dict[str, Value]:
    """The values of one image, by column."""
    return {name: one.of(picture) for name, one in measures().items()}


def judge(columns: Columns) -> dict[str, Flagged]:
    """The images that each check flags."""
    return {name: check.judge(columns) for name, check in CHECKS.items()}
