"""Whether a run that started from an encoder made it better: read from its probes, and said in words; free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from carl.records.metrics import Record, is_number

# What a probe measures of an encoder, the most telling first: labels where there are any, else its neighbours.
KNN, STABILITY = "knn", "neighbour_stability"
SEPARATION = "view_separation"  # recorded, but not to decide by: training raises it also where it hurts
RIGHT = "knn_right"  # which test images the probe named rightly, one bit per image
GAINED, LOST = "knn_gained", "knn_lost"  # test images that are right now and were not at the start, and the reverse
NAMES = {KNN: "kNN probe", STABILITY: "neighbour stability"}
EXPLAINED = {
    KNN: "how often the nearest labelled images name the right label",
    STABILITY: "how many of the nearest images stay the same when an image is cut and coloured in another way",
}


@dataclass(frozen=True)
class Adaptation:
    """The encoder that a run started from beside the one that it trained, by one measure in percent."""

    measure: str  # a key of NAMES
    start: float
    trained: float
    gained: int | None = None  # test images that only the trained encoder gets right; None if it is not known
    lost: int | None = None  # test images that only the start gets right

    @property
    def gain(self) -> float:
        return self.trained - self.start

    @property
    def is_better(self) -> bool:
        """Whether the trained encoder is the one to keep. Without a gain it is not: the start is known to work."""
        return self.gain > 0

    @property
    def may_be_chance(self) -> bool:
        """Whether other test images could well have told the reverse; False if it is not known.

        McNemar's test at 5%, with Edwards' correction for small numbers: only images on which both differ count.
        """
        if self.gained is None or self.lost is None or self.gain == 0:
            return False
        return max(0, abs(self.gained - self.lost) - 1) ** 2 <= 3.84 * (self.gained + self.lost)

    def in_words(self) -> str:
        """One sentence about which is better, by how much, and whether that may be chance."""
        figures = f"{NAMES[self.measure]} {self.trained:.1f}% against {self.start:.1f}%"
        if self.may_be_chance:
            figures += f". That may be chance: {self.gained} test images became right, and {self.lost} wrong"
        if self.is_better:
            return f"the adapted encoder is better than the one it started from: {figures}"
        how = "no better" if self.gain == 0 else "worse"
        return f"the adapted encoder is {how} than the one it started from: {figures}"


def adaptation(records: Sequence[Record]) -> Adaptation | None:
    """Start and end of a run by the best measure that its probes share; None if it was not probed before and after."""
    probes = [record for record in records if record.get("kind") == "probe"]
    if len(probes) < 2 or probes[0].get("epoch") != 0:
        return None
    first, last = probes[0], probes[-1]
    for measure in NAMES:
        if is_number(first.get(measure)) and is_number(last.get(measure)):
            return Adaptation(measure, float(first[measure]), float(last[measure]), *_changed(measure, last))
    return None


def _changed(measure: str, last: Record) -> tuple[int | None, int | None]:
    """How many test images became right, and how many wrong; older runs did not count them."""
    gained, lost = last.get(GAINED), last.get(LOST)
    if measure != KNN or not is_number(gained) or not is_number(lost):
        return None, None
    return int(gained), int(lost)
