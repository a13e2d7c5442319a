"""kNN: the labelled training images nearest to a test image vote on its class (Wu et al. 2018)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from carl.defaults import KNN_NEIGHBOURS, KNN_TEMPERATURE
from carl.evaluation.protocols.base import EvaluationRequest, Outcome, Protocol

if TYPE_CHECKING:
    from torch import nn

    from carl.evaluation.evaluation_data import EvaluationData
    from carl.methods import Method

NEIGHBOURS = (1, 5, KNN_NEIGHBOURS, 200)


def measure(
    encoder: nn.Module, method: Method | None, data: EvaluationData, request: EvaluationRequest, seed: int
) -> Outcome:
    """Each process judges its share of the test images."""
    import torch

    from carl import distributed
    from carl.evaluation.neighbours import knn_scores

    place = data.feature_device
    train, test = (data.cached_features(encoder, split) for split in (data.train, data.test))
    labels, truth = torch.from_numpy(data.train_labels), torch.from_numpy(data.test_labels)
    with distributed.computing_together():
        share = slice(distributed.rank(), None, distributed.world_size())
        scores = knn_scores(
            train.to(place), labels.to(place), test[share].to(place), NEIGHBOURS, KNN_TEMPERATURE, data.classes
        )
        found = torch.zeros(len(scores), len(truth), device=place)
        found[:, share] = torch.stack([(s.argmax(1) == truth[share].to(place)).float() for s in scores.values()])
        found = distributed.sum_over_processes(found).cpu()
    right = {str(k): row.numpy() > 0 for k, row in zip(scores, found, strict=True)}
    return Outcome({k: 100 * int(row.sum()) / len(truth) for k, row in right.items()}, {}, right)


def values(request: EvaluationRequest) -> dict[str, Any]:
    return {"neighbours": list(NEIGHBOURS), "temperature": KNN_TEMPERATURE, "similarity": "cosine"}


KNN = Protocol(
    title="kNN",
    heading="kNN top-1 accuracy",
    kind="offline: the labelled training images vote, all test images are judged",
    measure=measure,
    values=values,
    headline=str(KNN_NEIGHBOURS),
    stands_for_encoder=True,
    names_count="neighbours",
    seeded=False,
    beside_random=True,
)
