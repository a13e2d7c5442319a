"""Exact copies: the same content more than once."""

from __future__ import annotations

import numpy as np

from carl.quality.check import Check, Columns, Flagged, Measure


def first_of_each(digests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first row of every content, and for each row which of these it equals: (U,) and (N,)."""
    _, first, which = np.unique(digests, return_index=True, return_inverse=True)
    return first, which.reshape(-1)


def sets_of(numbers: np.ndarray) -> tuple[np.ndarray, ...]:
    """The rows that share a number, for each number with two or more: the earliest set first, rows in order."""
    order = np.argsort(numbers, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
    return tuple(sorted((group for group in groups if len(group) > 1), key=lambda group: int(group[0])))


def flagged_sets(sets: tuple[np.ndarray, ...]) -> Flagged:
    """All rows of the sets, with the size of the set of each."""
    rows = np.concatenate([*sets, np.empty(0, np.int64)]).astype(np.int64)
    sizes = np.repeat([len(group) for group in sets], [len(group) for group in sets])
    return Flagged(rows, sizes, sets)


def _judge(columns: Columns) -> Flagged:
    return flagged_sets(sets_of(first_of_each(columns["content"])[1]))


EXACT_COPIES = Check(
    title="Exact copies",
    meaning="These images are the same, pixel by pixel. Keep one of each, above all not one in train and one in test.",
    rule="the pixels are equal; for a JPEG much larger than the encoder's input, the files are",
    measures={"content": Measure("text", lambda picture: picture.digest)},
    judge=_judge,
)
