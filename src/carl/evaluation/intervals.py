"""How far an accuracy, or the difference of two, can be trusted: 95% intervals by the bootstrap. Imports no torch.

Test images are drawn again with replacement, and so are seeds where there are several. Two encoders that were judged on
the same images are compared image by image (a paired bootstrap): what is hard for both does not count. Our own,
because SciPy's bootstrap draws one kind of thing again, and not images and seeds at once.

S: seeds, M: test images, P: distinct patterns of right and wrong over the seeds.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
EXPLAINED = (
    f"in brackets: {LEVEL:.0%} intervals, over test images that are drawn again, and over seeds where there are several"
)
DRAWS = 2000  # the ends of an interval of 58% on 2,000 images are then exact to about 0.1 points
LARGEST_BLOCK = 2**22  # numbers drawn at once


@dataclass(frozen=True)
class Interval:
    """A percentage, or a difference of two, with the ends of its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether a difference is on one side of zero."""
        return self.low > 0 or self.high < 0

    @property
    def ends(self) -> list[float]:
        return [round(self.low, 2), round(self.high, 2)]


@dataclass(frozen=True, eq=False)
class Judged:
    """Which test images an encoder got right: (S, M). `images` names them; "" if it is not known which they are."""

    right: np.ndarray
    images: str = ""

    @classmethod
    def counted(cls, accuracy: float, images: int) -> Judged:
        """For an old result, which has the percentage alone: as many right ones, in no known order."""
        right = np.zeros((1, images), dtype=bool)
        right[0, : round(accuracy / 100 * images)] = True
        return cls(right)

    @classmethod
    def together(cls, parts: Sequence[Judged]) -> Judged:
        """Several seeds of one method, in order; they must be of the same images to be known as such."""
        same = len({part.images for part in parts}) == 1
        return cls(np.concatenate([part.right for part in parts]), parts[0].images if same else "")

    @property
    def accuracy(self) -> float:
        return 100 * float(self.right.mean())


def packed(right: np.ndarray) -> str:
    """Right and wrong of M images as text, one bit per image."""
    return base64.b64encode(np.packbits(np.asarray(right, dtype=bool)).tobytes()).decode()


def unpacked(text: object, images: int) -> np.ndarray | None:
    """The bits of `packed`; None if there is no text, or it is not of that many images."""
    if not isinstance(text, str):
        return None
    try:
        found = np.frombuffer(base64.b64decode(text, validate=True), dtype=np.uint8)
    except (binascii.Error, ValueError):
        return None
    return np.unpackbits(found)[:images].astype(bool) if len(found) == math.ceil(images / 8) else None


def interval(judged: Judged) -> Interval:
    """The accuracy with its interval, which is the exact binomial one if every image is right, or none is."""
    # The lowest accuracy at which so many could all be right by chance.
    certain = 100 * ((1 - LEVEL) / 2) ** (1 / judged.right.shape[1])
    if judged.right.all():
        return Interval(100.0, certain, 100.0)
    if not judged.right.any():
        return Interval(0.0, 0.0, 100 - certain)
    found = _interval(judged.accuracy, *_drawn([judged.right], [1.0]))
    return Interval(found.value, max(0.0, found.low), min(100.0, found.high))


def difference(first: Judged, second: Judged) -> Interval:
    """How much higher the first accuracy is, in points; paired where both are known to be of the same images."""
    value = first.accuracy - second.accuracy
    if is_paired(first, second):
        return _interval(value, *_drawn([first.right, second.right], [1.0, -1.0]))
    ours, our_parts = _drawn([first.right], [1.0])
    theirs, their_parts = _drawn([second.right], [1.0], seed=1)
    return _interval(value, ours - theirs, [*our_parts, *their_parts])


def is_paired(first: Judged, second: Judged) -> bool:
    return first.images != "" and first.images == second.images and first.right.shape[1] == second.right.shape[1]


def _interval(value: float, draws: np.ndarray, parts: Sequence[tuple[float, int]]) -> Interval:
    """The middle 95% of the draws, wider where few seeds stand behind them (Student's t, Welch-Satterthwaite)."""
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    wider = _widening(parts)
    return Interval(value, value - wider * (value - float(low)), value + wider * (float(high) - value))


def _widening(parts: Sequence[tuple[float, int]]) -> float:
    """How much wider an interval must be if its variance is a sum of parts (variance, degrees of freedom)."""
    from scipy.special import ndtri, stdtrit

    total = sum(variance for variance, _ in parts)
    spread = sum(variance**2 / freedom for variance, freedom in parts if freedom > 0)
    if not total or not spread:
        return 1.0
    return float(stdtrit(total**2 / spread, (1 + LEVEL) / 2) / ndtri((1 + LEVEL) / 2))


def _drawn(
    rights: Sequence[np.ndarray], signs: Sequence[float], seed: int = 0
) -> tuple[np.ndarray, list[tuple[float, int]]]:
    """Draws of the signed sum of accuracies, in points, and the parts of their variance with degrees of freedom.

    All of `rights` see the same drawn images, and each its own drawn seeds: S - 1 of S, which makes the variance that
    of a mean over S seeds (Rao and Wu 1988). Images with the same pattern are drawn together, as one multinomial, so
    that the time hardly depends on M.
    """
    random = np.random.default_rng(seed)
    whole = np.concatenate(rights)  # (all seeds, M)
    patterns, counts = np.unique(whole, axis=1, return_counts=True)  # (all seeds, P), (P,)
    images = whole.shape[1]
    block = max(1, LARGEST_BLOCK // len(counts))
    accuracies = np.concatenate(
        [
            random.multinomial(images, counts / images, size=min(block, DRAWS - start)) @ patterns.T / images
            for start in range(0, DRAWS, block)
        ]
    )  # (DRAWS, all seeds)
    draws, parts, place = np.zeros(DRAWS), [], 0
    per_image = np.zeros(images)
    for right, sign in zip(rights, signs, strict=True):
        seeds = len(right)
        weights = random.multinomial(seeds - 1, [1 / seeds] * seeds, size=DRAWS) / (seeds - 1) if seeds > 1 else 1.0
        draws += sign * 100 * (accuracies[:, place : place + seeds] * weights).sum(axis=1)
        per_image += sign * 100 * right.mean(axis=0)
        if seeds > 1:
            parts.append((float((100 * right.mean(axis=1)).var(ddof=1)) / seeds, seeds - 1))
        place += seeds
    parts.append((float(per_image.var()) / images, max(1, images - 1)))
    return draws, parts
