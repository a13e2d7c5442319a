"""A protocol: how much the features of the test images differ from one another."""

from __future__ import annotations

from torch import nn

from carl.evaluation.evaluation_data import EvaluationData
from carl.evaluation.protocols import EvaluationRequest, Outcome, Protocol
from carl.methods import Method


def measure(
    encoder: nn.Module, method: Method | None, data: EvaluationData, request: EvaluationRequest, seed: int
) -> Outcome:
    features = data.cached_features(encoder, data.test)
    return Outcome({"spread": min(100.0, 100 * features.std(0).mean().item())}, {})


TOY_PROTOCOL = Protocol("toy spread", "offline: a toy", measure, beside_random=True)
