"""Curves of whatever figures the runs logged, named and grouped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from carl.records.adaptation import GAINED, LOST, STABILITY_ERROR, VOTERS
from carl.records.metrics import Record, is_number
from carl.records.prototypes import NEARLY_ALL
from carl.reporting.run_reader import Run

LOSS, LEARNED, PROTOTYPES, SCHEDULE, MORE = (
    "Loss", "What was learned", "Prototypes", "Schedule and speed", "More figures",
)  # fmt: skip
GROUPS = (LOSS, LEARNED, PROTOTYPES, SCHEDULE, MORE)

# Figures with a name of their own, in the order in which they are shown; others are named after their key.
KNOWN: dict[str, tuple[str, str]] = {
    "loss": (LOSS, "Loss"),
    "consistency": (LOSS, "Consistency of two views (Eq. 4)"),
    "kl": (LOSS, "KL to the uniform prior (Eq. 5)"),
    "consistency_in_parts": (LOSS, "Consistency, sum over parts of the embedding"),
    "kl_in_parts": (LOSS, "KL to the uniform prior, sum over parts of the embedding"),
    "chance": (LOSS, "Agreement with views of other images (log)"),
    "info_nce": (LOSS, "InfoNCE over images"),
    "proto_nce": (LOSS, "ProtoNCE over clusters"),
    "knn": (LEARNED, "kNN probe, online (%)"),
    "knn_among": (LEARNED, "kNN among the training images (%)"),
    "neighbour_stability": (LEARNED, "Nearest images that two views share (%)"),
    "view_separation": (LEARNED, "Views of one image apart from those of others (standard deviations)"),
    "rank_me": (LEARNED, "Dimensions in use (RankMe)"),
    "agreement": (LEARNED, "Views that agree (fraction)"),
    "ranked_first": (LEARNED, "Own view ranked first (fraction)"),
    "train_accuracy": (LEARNED, "Accuracy on the batch (fraction)"),
    "spread": (LEARNED, "Spread of the embeddings"),
    "used": (PROTOTYPES, "Prototypes in use"),
    "mean_entropy": (PROTOTYPES, "Entropy of the mean assignment (nats)"),
    "entropy": (PROTOTYPES, "Entropy of an assignment (nats)"),
    "lambda": (SCHEDULE, "Weight of the prior, \u03bb"),
    "lr": (SCHEDULE, "Learning rate"),
    "momentum": (SCHEDULE, "Momentum of the averaged weights"),
    "images_per_second": (SCHEDULE, "Images per second"),
    "information": (MORE, "Information in an assignment (nats)"),
    "covering": (MORE, f"Prototypes that hold {NEARLY_ALL:.0%} of the views"),
    "largest": (MORE, "Fraction of the views in the largest prototype"),
    "heaviest": (MORE, "Largest probability in the mean assignment"),
    "dead": (MORE, "Dead prototypes"),
    "duplicates": (MORE, "Prototypes nearly the same as another"),
    "largest_cluster": (MORE, "Fraction of the images in the largest cluster"),
    "target_distance": (MORE, "Distance of the averaged weights"),
    "queue_filled": (MORE, "Fraction of the queue that is filled"),
    "queue_age": (MORE, "Steps since the oldest key in the queue"),
}
NOT_DRAWN = {"step", "epoch", "seconds", "prototypes", "images", GAINED, LOST, STABILITY_ERROR, VOTERS}
MOST_POINTS = 300  # of a line; more are averaged, a chart is about as many pixels wide


def charts(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A chart for each figure that any run logged: what a batch showed as a thin line, probes with dots."""
    keys = {key for run in runs for record in run.records for key in _figures(record)}
    order = {key: place for place, key in enumerate(KNOWN)}
    drawn = []
    for key in sorted(keys, key=lambda key: (order.get(key, len(order)), key)):
        group, title = KNOWN.get(key, (LOSS if _is_loss_term(key, runs) else MORE, _title(key)))
        series = [line for place, run in enumerate(runs) for line in _lines(run, place, key, alone=len(runs) == 1)]
        if series:
            drawn.append({"key": key, "group": group, "title": title, "series": series, "mark": _mark(key, runs)})
    return sorted(drawn, key=lambda chart: GROUPS.index(str(chart["group"])))


def _figures(record: Record) -> set[str]:
    if record.get("kind") not in ("step", "probe"):
        return set()
    return {key for key, value in record.items() if key not in NOT_DRAWN and is_number(value)}


def _is_loss_term(key: str, runs: Sequence[Run]) -> bool:
    return any(key in record for run in runs for record in run.of_kind("step"))


def _title(key: str) -> str:
    words = key.replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def _lines(run: Run, place: int, key: str, alone: bool) -> list[dict[str, Any]]:
    """The lines of one figure: where many runs share a chart, the probe's alone."""
    found = []
    for kind, name in (("step", "batch"), ("probe", "probe")):
        points = [(r["epoch"], r[key]) for r in run.of_kind(kind) if key in r]
        if points:
            found.append({"run": place, "kind": kind, "name": name, "points": _thinned(points)})
    return found if alone else found[-1:]


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(points) > MOST_POINTS:
        parts = np.array_split(np.asarray(points, dtype=np.float64), MOST_POINTS)
        points = [(float(x), float(y)) for x, y in (part.mean(axis=0) for part in parts)]
    return [(float(f"{x:.6g}"), float(f"{y:.6g}")) for x, y in points]


def _mark(key: str, runs: Sequence[Run]) -> dict[str, Any] | None:
    """A level to compare with: all prototypes, or the entropy when all are used equally."""
    counts = {record["prototypes"] for run in runs for record in run.of_kind("probe") if "prototypes" in record}
    if len(counts) != 1 or min(counts) <= 0 or key not in ("used", "mean_entropy"):
        return None
    (count,) = counts
    return {"value": count, "name": f"all {count}"} if key == "used" else {"value": math.log(count), "name": "ln K"}
