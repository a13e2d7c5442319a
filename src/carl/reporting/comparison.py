"""Several runs beside each other: which learned more, and in what they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from carl.evaluation.results import Score, most_telling
from carl.reporting.run_reader import Run
from carl.reporting.verdict import Verdict, duration, headline, judge, scores, training_seconds

SAME_FOR_READERS = {"log", "probe"}  # sections that have no say in the weights
MOST_TOGETHER = 8  # runs whose images are laid beside each other: as many as there are colours, under 15 MB per page


@dataclass(frozen=True)
class Row:
    """A run in the table."""

    place: int  # among the runs as given: its colour
    run: Run
    score: Score | None
    verdict: Verdict
    time: str
    others: list[Score]  # those that say most


def ranking(runs: Sequence[Run]) -> tuple[list[Row], str]:
    """The runs, the best first, by a score that all have; and what that score is."""
    shared = shared_score(runs)
    rows = []
    for place, run in enumerate(runs):
        found = [score for score in scores(run) if score.comparable]
        score = next((s for s in found if s.identity == shared.identity), None) if shared else headline(run)
        seconds, measured = training_seconds(run)
        time = ("" if measured else "about ") + duration(seconds) if seconds else "?"
        others = [s for s in found if s.is_headline and (score is None or s.identity != score.identity)]
        rows.append(Row(place, run, score, judge(run), time, others))
    if shared is not None:  # else there is no better and worse: they stay as given
        rows.sort(key=lambda row: -row.score.value if row.score else 1.0)
    return rows, "" if shared is None else shared.label + ("" if shared.own_data else f", on {shared.data}")


def shared_score(runs: Sequence[Run]) -> Score | None:
    """The score that says most of those that every run has, by the same protocol on the same images."""
    common = set.intersection(*({s.identity for s in scores(run) if s.comparable} for run in runs))
    candidates = [s for s in scores(runs[0]) if s.comparable and s.identity in common]
    own = [s for s in candidates if s.own_data]
    return most_telling(own) or most_telling(candidates) or next(iter(candidates), None)


def conclusion(rows: Sequence[Row], shared: str) -> str:
    """In one sentence, which run learned more."""
    scored = [row for row in rows if row.score is not None]
    if len(scored) < len(rows) or not shared:
        return (
            "The runs have no score in common. Evaluate each with the same protocol on the same images: "
            "carl eval RUN --data DATA"
        )
    first, second = scored[0], scored[1]
    assert first.score is not None
    assert second.score is not None
    gain = first.score.gain
    over = "" if gain is None else f", {gain:+.1f} points over random weights"
    ahead = first.score.value - second.score.value
    if ahead < 0.05:
        return f"{first.run.name} and {second.run.name} are level at {first.score.value:.1f}% ({shared}){over}."
    return (
        f"{first.run.name} learned most: {first.score.value:.1f}% ({shared}){over}, "
        f"and {ahead:.1f} points ahead of {second.run.name}."
    )


def config_differences(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """`section.key` and each run's value, for values that are not the same in all runs."""
    keys = sorted(
        {(section, key) for run in runs for section, values in run.config.items() for key in values},
        key=lambda pair: (pair[0] != "method", pair),
    )
    rows = []
    for section, key in keys:
        values = [run.value(section, key) for run in runs]
        if section not in SAME_FOR_READERS and any(value != values[0] for value in values):
            rows.append((f"{section}.{key}", ["\u2013" if value is None else str(value) for value in values]))
    return rows


def same_images(runs: Sequence[Run]) -> bool:
    """True when a few runs all have a gallery of the same images, so that they can be laid beside each other."""
    first: dict[str, Any] = runs[0].gallery
    return len(runs) <= MOST_TOGETHER and all(
        run.gallery
        and np.array_equal(run.gallery["rows"], first["rows"])
        and np.array_equal(run.gallery["thumbnails"], first["thumbnails"])
        for run in runs
    )
