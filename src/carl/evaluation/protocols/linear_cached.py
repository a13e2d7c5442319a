"""The cached linear protocol: logistic regression on features that were extracted once. It stands for `linear`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from carl.evaluation.protocols.base import TOP_1, EvaluationRequest, Outcome, Protocol
from carl.evaluation.protocols.linear import MOCO_CENTRE

if TYPE_CHECKING:
    from torch import nn

    from carl.evaluation.evaluation_data import EvaluationData
    from carl.methods import Method


def measure(
    encoder: nn.Module, method: Method | None, data: EvaluationData, request: EvaluationRequest, seed: int
) -> Outcome:
    import torch

    from carl.evaluation.logistic import linear_probe

    place = data.feature_device
    found = linear_probe(
        data.cached_features(encoder, data.train).to(place),
        torch.from_numpy(data.train_labels).to(place),
        data.cached_features(encoder, data.test).to(place),
        torch.from_numpy(data.test_labels).to(place),
        seed=seed,
    )
    details = {
        "penalty": found.classifier.penalty,
        "converged": found.classifier.converged,
        "validation": {f"{penalty:.3g}": round(value, 2) for penalty, value in found.validation.items()},
    }
    return Outcome.of(found.accuracy, details)


def values(request: EvaluationRequest) -> dict[str, Any]:
    from carl.evaluation.logistic import JUDGED, PENALTIES, VALIDATION

    return {"penalties": list(PENALTIES), "validation": VALIDATION, "judged": JUDGED, "standardised": True}


def notes(per_seed: Sequence[dict[str, Any]]) -> list[str]:
    found = []
    if any(outcome.get("converged") is False for outcome in per_seed):
        found.append("the solver stopped before it had converged")
    if not all(outcome.get("validation") for outcome in per_seed):
        found.append("every class has one image, so that the penalty is a fixed one, not chosen")
    return found


LINEAR_CACHED = Protocol(
    title="linear",
    heading="linear accuracy",
    kind="cached: logistic regression on features extracted once, penalty chosen on tenths of the training images",
    measure=measure,
    values=values,
    notes=notes,
    headline=TOP_1,
    stands_for_encoder=True,
    beside_random=True,
    centre=MOCO_CENTRE,
)
