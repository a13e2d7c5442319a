"""Whether a run that started from an encoder made it better: read from its probes, and said in words; free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from carl.records.metrics import Record, is_number

# What a probe measures of an encoder, the most telling first: labels where there are any, else its neighbours.
KNN, KNN_AMONG, STABILITY = "knn", "knn_among", "neighbour_stability"
SEPARATION = "view_separation"  # recorded, but not to decide by: training raises it also where it hurts
VOTERS = "knn_voters"  # how many labelled training images the probe asked
RIGHT = "knn_right"  # which images the probe named rightly, one bit per image
GAINED, LOST = "knn_gained", "knn_lost"  # images that are right now and were not at the start, and the reverse
SHARED = "neighbours_shared"  # how many nearest images the two views of each image share, one digit per image
STABILITY_ERROR = "neighbour_stability_error"  # standard error of its change since the start
NAMES = {KNN: "kNN probe", KNN_AMONG: "kNN among the training images", STABILITY: "neighbour stability"}
JUDGED = {KNN: "test images", KNN_AMONG: "images"}  # what became right or wrong
EXPLAINED = {
    KNN: "how often the nearest labelled images name the right label",
    KNN_AMONG: "how often the nearest other training images name the right label; there are no test images",
    STABILITY: "how many of the nearest images stay the same when an image is cut and coloured in another way",
}


@dataclass(frozen=True)
class Adaptation:
    """The encoder that a run started from beside the one that it trained, by one measure in percent."""

    measure: str  # a key of NAMES
    start: float
    trained: float
    gained: int | None = None  # images that only the trained encoder gets right; None if it is not known
    lost: int | None = None  # images that only the start gets right
    error: float | None = None  # standard error of the gain in neighbour stability; None if it is not known

    @property
    def gain(self) -> float:
        return self.trained - self.start

    @property
    def is_better(self) -> bool:
        """Whether the trained encoder is the one to keep. Without a gain it is not: the start is known to work."""
        return self.gain > 0

    @property
    def may_be_chance(self) -> bool:
        """Whether other images could well have told the reverse; False if it is not known.

        A test at 5% that compares image by image. With labels it is McNemar's, with Edwards' correction for small
        numbers: only images on which both differ count. Without labels it is the mean difference in stability against
        its standard error.
        """
        if self.error is not None:
            return 0 < abs(self.gain) <= 1.96 * self.error
        if self.gained is None or self.lost is None or self.gain == 0:
            return False
        return max(0, abs(self.gained - self.lost) - 1) ** 2 <= 3.84 * (self.gained + self.lost)

    def in_words(self, explained: bool = False) -> str:
        """Which is better, by how much, and whether that may be chance; with `explained`, what the figures mean."""
        figures = f"{NAMES[self.measure]} {self.trained:.1f}% against {self.start:.1f}%"
        if explained:
            figures += f" ({EXPLAINED[self.measure]})"
        if self.may_be_chance:
            figures += f". That may be chance: {self._evidence}"
        if self.is_better:
            return f"the adapted encoder is better than the one it started from: {figures}"
        how = "no better" if self.gain == 0 else "worse"
        return f"the adapted encoder is {how} than the one it started from: {figures}"

    @property
    def _evidence(self) -> str:
        if self.error is not None:
            return f"the difference of {abs(self.gain):.2f} points has a standard error of {self.error:.2f}"
        return f"{self.gained} {JUDGED[self.measure]} became right, and {self.lost} wrong"


def adaptation(records: Sequence[Record]) -> Adaptation | None:
    """Start and end of a run by the best measure that its probes share; None if it was not probed before and after."""
    probes = [record for record in records if record.get("kind") == "probe"]
    if len(probes) < 2 or probes[0].get("epoch") != 0:
        return None
    first, last = probes[0], probes[-1]
    for measure in NAMES:
        if is_number(first.get(measure)) and is_number(last.get(measure)):
            start, trained = float(first[measure]), float(last[measure])
            if measure == STABILITY:
                error = last.get(STABILITY_ERROR)
                return Adaptation(measure, start, trained, error=float(error) if is_number(error) else None)
            return Adaptation(measure, start, trained, *_changed(last))
    return None


def _changed(last: Record) -> tuple[int | None, int | None]:
    """How many images became right, and how many wrong; older runs did not count them."""
    gained, lost = last.get(GAINED), last.get(LOST)
    return (int(gained), int(lost)) if is_number(gained) and is_number(lost) else (None, None)
