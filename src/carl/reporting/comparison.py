"""Several runs beside each other: which learned more, and in what they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from carl.durations import in_words
from carl.evaluation.results import Score, most_telling, over_seeds
from carl.evaluation.standing import NOT_TO_CROWN, Entry, standing
from carl.reporting.run_reader import Run
from carl.reporting.verdict import Verdict, headline, judge, scores, training_seconds

SEVERITY = {"plain": 1, "warn": 2, "bad": 3}  # of a verdict's tone
SAME_FOR_READERS = {"log", "probe"}  # sections that have no say in the weights
MOST_TOGETHER = 8  # runs whose images are laid beside each other: as many as there are colours, under 15 MB per page


@dataclass(frozen=True)
class Row:
    """A run in the table, or several runs of one method that differ in their seed."""

    place: int  # among the runs as given: its colour
    run: Run  # the first
    seeds: int
    score: Score | None  # over all seeds
    verdict: Verdict  # the worst
    unhealthy: str  # a verdict that forbids to call it the best
    time: str
    others: list[Score]  # those that say most


def ranking(runs: Sequence[Run], seeds: Sequence[Sequence[Run]] | None = None) -> tuple[list[Row], str]:
    """The runs, the best first, by a score that all have; and what that score is.

    `seeds` has for each of the runs all runs of the same method, itself included.
    """
    groups = [[run] for run in runs] if seeds is None else seeds
    shared = shared_score([run for group in groups for run in group])
    rows = [_row(place, group, shared) for place, group in enumerate(groups)]
    if shared is not None:  # else there is no better and worse: they stay as given
        rows.sort(key=lambda row: -row.score.value if row.score else 1.0)
    return rows, "" if shared is None else shared.label + ("" if shared.own_data else f", on {shared.data}")


def _row(place: int, group: Sequence[Run], shared: Score | None) -> Row:
    run = group[0]
    found = [score for score in scores(run) if score.comparable]
    score = headline(run)
    if shared is not None:
        score = over_seeds(
            [s for each in group for s in scores(each) if s.comparable and s.identity == shared.identity]
        )
    times = [training_seconds(each) for each in group]
    seconds, measured = times[0]
    time = ("" if measured else "about ") + in_words(seconds) if seconds else "?"
    others = [s for s in found if s.is_headline and (score is None or s.identity != score.identity)]
    probed = [str(probes[-1].get("verdict")) for each in group if (probes := each.of_kind("probe"))]
    unhealthy = next((word for word in NOT_TO_CROWN if word in probed), "")
    worst = max((judge(each) for each in group), key=lambda verdict: SEVERITY.get(verdict.tone, 0))
    return Row(
        place=place,
        run=run,
        seeds=len(group),
        score=score,
        verdict=worst,
        unhealthy=unhealthy,
        time=time if len(group) == 1 else f"{time} each",
        others=others,
    )


def shared_score(runs: Sequence[Run]) -> Score | None:
    """The score that says most of those that every run has, by the same protocol on the same images."""
    common = set.intersection(*({s.identity for s in scores(run) if s.comparable} for run in runs))
    candidates = [s for s in scores(runs[0]) if s.comparable and s.identity in common]
    own = [s for s in candidates if s.own_data]
    return most_telling(own) or most_telling(candidates) or next(iter(candidates), None)


def conclusion(rows: Sequence[Row], shared: str) -> tuple[str, str]:
    """In a few sentences, which learned more, if the images and seeds can tell; and how that was found out."""
    scored = [row for row in rows if row.score is not None]
    if len(scored) < len(rows) or not shared:
        return (
            "The runs have no score in common. Evaluate each with the same protocol on the same images: "
            "carl eval RUN --data DATA",
            "",
        )
    entries = [
        Entry(
            row.run.name,
            row.score.judged,
            row.unhealthy,
            gain=row.score.gain_interval,
            baseline=row.score.baseline_name,
        )
        for row in scored
        if row.score and row.score.judged is not None
    ]
    if len(entries) < len(scored):
        listed = ", ".join(f"{row.run.name} {row.score.value:.1f}%" for row in scored if row.score)
        return (
            f"{listed} ({shared}). This score does not say on how many images it rests, so a difference may be chance. "
            "Measure each on all test images: carl eval RUN",
            "",
        )
    found = standing(entries)
    sentences = found.sentences()
    best = next((row.score for row in scored if found.best is not None and row.run.name == found.best.name), None)
    if best is not None and best.gain is not None and found.best is not None:
        clear = "" if best.gain_is_clear else ", which may be chance"
        sentences.append(f"{found.best.name} is {best.gain:+.1f} points over {best.baseline_name}{clear}.")
    return " ".join(sentences), found.footnote()


def shared_values(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """`section.key` and the value that all runs have."""
    first = runs[0].config
    return [
        (f"{section}.{key}", str(value))
        for section, values in first.items()
        for key, value in values.items()
        if section not in SAME_FOR_READERS and all(run.value(section, key) == value for run in runs)
    ]


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
