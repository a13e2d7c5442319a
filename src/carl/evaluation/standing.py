"""Which of several encoders is ahead, if any: no winner from noise, and none that has collapsed. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from carl.evaluation.intervals import Interval, Judged, difference, is_paired
from carl.evaluation.results import RANDOM_WEIGHTS
from carl.records.verdicts import COLLAPSED, PARTLY_COLLAPSED

NOT_TO_CROWN = (COLLAPSED, PARTLY_COLLAPSED)  # verdicts on a training that must not be called the best


@dataclass(frozen=True)
class Entry:
    """One encoder, or several seeds of one method."""

    name: str
    judged: Judged
    unhealthy: str = ""  # the verdict on its training, if it must not be called the best
    frozen: bool = False  # not trained for this comparison, so that it has no seeds
    gain: Interval | None = None  # over the baseline; None if it is not known
    baseline: str = RANDOM_WEIGHTS

    @property
    def seeds(self) -> int:
        return len(self.judged.right)

    @property
    def has_learned_nothing(self) -> bool:
        """Whether it may be no better than its baseline."""
        return self.gain is not None and self.gain.low <= 0

    @property
    def in_words(self) -> str:
        return f"{self.name} {self.judged.accuracy:.1f}%"


@dataclass(frozen=True)
class Against:
    """An entry beside the one with the highest accuracy."""

    other: Entry
    ahead: Interval  # of the best one over it, in points
    paired: bool  # on the same test images, image by image

    @property
    def in_words(self) -> str:
        return f"{self.other.name} ({self.ahead.value:+.1f} points, {self.ahead.low:+.1f} to {self.ahead.high:+.1f})"


@dataclass(frozen=True)
class Standing:
    """The healthy entry with the highest accuracy, and how far it is over each other one."""

    best: Entry | None
    against: tuple[Against, ...]
    passed_over: tuple[Entry, ...]  # at least as accurate as the best, and not healthy

    @property
    def level(self) -> tuple[Against, ...]:
        """Those that may be as good as the best, as far as these images and seeds can tell."""
        return tuple(one for one in self.against if not one.ahead.is_clear)

    @property
    def behind(self) -> tuple[Against, ...]:
        return tuple(one for one in self.against if one.ahead.is_clear)

    @property
    def has_winner(self) -> bool:
        return self.best is not None and bool(self.against) and not self.level and not self.best.has_learned_nothing

    def sentences(self) -> list[str]:
        """What can be said, the answer first; `footnote` says how it was found out."""
        if self.best is None:
            return ["No winner: none of the trainings is healthy."]
        if not self.against:
            return []
        words = []
        if self.best.has_learned_nothing:
            words.append(self._without_winner())
        elif self.has_winner:
            words.append(f"{self.best.in_words} is ahead of {_listed(self.behind)}.")
        else:
            words.append(f"No clear difference between {self.best.in_words} and {_listed(self.level)}.")
            words += [f"{self.best.name} is ahead of {_listed(self.behind)}."] if self.behind else []
        if not self.best.has_learned_nothing and min(self._seeds, default=2) == 1:
            words.append("With one seed, another seed may give another order.")
        words += [
            f"{one.in_words} is {one.unhealthy}, so its accuracy does not count as a lead." for one in self.passed_over
        ]
        return words

    def _without_winner(self) -> str:
        """Where the best may be no better than its baseline: which ones may not."""
        assert self.best is not None
        found = [one for one in self._compared if one.has_learned_nothing and one.baseline == self.best.baseline]
        first, last = ", ".join(one.in_words for one in found[:-1]), found[-1].in_words
        who = {1: f"{last} is not", 2: f"neither {first} nor {last} is"}.get(
            len(found), f"none of {first} and {last} is"
        )
        return f"No winner: {who} clearly better than {self.best.baseline}."

    @property
    def _compared(self) -> list[Entry]:
        return [*([self.best] if self.best else []), *(one.other for one in self.against)]

    @property
    def _seeds(self) -> list[int]:
        """How many seeds each of those has that were trained."""
        return [entry.seeds for entry in self._compared if not entry.frozen]

    def footnote(self) -> str:
        """What the brackets are; nothing where there are none."""
        if self.best is None or not self.against or self.best.has_learned_nothing:
            return ""
        images = self.best.judged.right.shape[1]
        how = "compared image by image" if all(one.paired for one in self.against) else "not known image by image"
        drawn = "test images and seeds" if max(entry.seeds for entry in self._compared) > 1 else "test images"
        return f"In brackets: 95% interval of the difference over {drawn}, by the bootstrap ({images:,} images, {how})."


def standing(entries: Sequence[Entry]) -> Standing:
    """Compare each entry with the healthy one that has the highest accuracy."""
    healthy = [entry for entry in entries if not entry.unhealthy]
    if not healthy:
        return Standing(None, (), ())
    best = max(healthy, key=lambda entry: entry.judged.accuracy)
    others = sorted((e for e in entries if e is not best), key=lambda entry: -entry.judged.accuracy)
    against = tuple(
        Against(other, difference(best.judged, other.judged), is_paired(best.judged, other.judged))
        for other in others
        if not (other.unhealthy and other.judged.accuracy >= best.judged.accuracy)
    )
    passed_over = tuple(e for e in others if e.unhealthy and e.judged.accuracy >= best.judged.accuracy)
    return Standing(best, against, passed_over)


def _listed(found: Sequence[Against]) -> str:
    return ", ".join(one.in_words for one in found)
