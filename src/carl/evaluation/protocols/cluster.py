"""Clusters against classes: the prototypes that images choose, and k-means of the features."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from carl.evaluation.protocols.base import EvaluationRequest, Outcome, Protocol

if TYPE_CHECKING:
    from torch import nn

    from carl.evaluation.evaluation_data import EvaluationData
    from carl.methods import Method

ITERATIONS = 100
RESTARTS = 5  # k-means with few clusters depends on its start


def measure(
    encoder: nn.Module, method: Method | None, data: EvaluationData, request: EvaluationRequest, seed: int
) -> Outcome:
    from carl.evaluation.clusters import cluster_features, cluster_prototypes

    prototypes = None if method is None else cluster_prototypes(method, data)
    counts = [data.classes] if prototypes is None else [data.classes, prototypes.clusters]
    clusters = cluster_features(encoder, data, counts, ITERATIONS, RESTARTS, seed)
    found = {f"k-means {agreement.clusters}": agreement for agreement in clusters}
    if prototypes is not None:
        found = {f"prototypes {prototypes.clusters}": prototypes, **found}
    figures = {f"{name} {what}": value for name, a in found.items() for what, value in a.figures().items()}
    return Outcome(figures, {"clusters": {name: asdict(agreement) for name, agreement in found.items()}})


def values(request: EvaluationRequest) -> dict[str, Any]:
    return {"iterations": ITERATIONS, "restarts": RESTARTS, "features": "unit length"}


CLUSTER = Protocol(
    title="cluster",
    heading="clusters against classes",
    kind="offline: clusters found on the training images, test images judged; no label is used to find them",
    measure=measure,
    values=values,
    beside_random=True,
    needs_method=True,
)
