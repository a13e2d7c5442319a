"""kNN: the labelled training images nearest to a test image vote on its class (Wu et al. 2018)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from carl.evaluation.protocols.base import EvaluationRequest, Outcome, Protocol

if TYPE_CHECKING:
    from torch import nn

    from carl.evaluation.evaluation_data import EvaluationData
    from carl.methods import Method

NEIGHBOURS = (1, 5, 20, 200)
TEMPERATURE = 0.1  # lightly's; Wu et al. 2018 use 0.07


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
            train.to(place), labels.to(place), test[share].to(place), NEIGHBOURS, TEMPERATURE, data.classes
        )
        right = torch.stack([(found.argmax(1) == truth[share].to(place)).sum() for found in scores.values()])
        right = distributed.sum_over_processes(right)
    return Outcome({str(k): 100 * count / len(truth) for k, count in zip(scores, right.tolist(), strict=True)}, {})


def values(request: EvaluationRequest) -> dict[str, Any]:
    return {"neighbours": list(NEIGHBOURS), "temperature": TEMPERATURE, "similarity": "cosine"}


KNN = Protocol(
    title="kNN",
    heading="kNN top-1 accuracy",
    kind="offline: the labelled training images vote, all test images are judged",
    measure=measure,
    values=values,
    headline="20",
    names_count="neighbours",
    seeded=False,
    beside_random=True,
)
