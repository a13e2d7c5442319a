"""Transfer: the linear protocol on other data than the encoder was trained on (paper, "Cross-domain transfer")."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from carl.evaluation.protocols.base import TOP_1, EvaluationRequest, Outcome, Protocol
from carl.evaluation.protocols.linear import EXPLAINED, MOCO_CENTRE, LinearRecipe, asked_for, check_rates, measure_by

if TYPE_CHECKING:
    from torch import nn

    from carl.evaluation.evaluation_data import EvaluationData
    from carl.methods import Method

USUAL = LinearRecipe(epochs=50)  # paper, section "Cross-domain transfer"


def measure(
    encoder: nn.Module, method: Method | None, data: EvaluationData, request: EvaluationRequest, seed: int
) -> Outcome:
    return measure_by(asked_for(request, USUAL), encoder, data, seed)


def values(request: EvaluationRequest) -> dict[str, Any]:
    return asdict(asked_for(request, USUAL))


TRANSFER = Protocol(
    title="transfer",
    heading="transfer, linear accuracy",
    kind="offline: MoCo's protocol on other data than the encoder was trained on",
    measure=measure,
    values=values,
    check=check_rates,
    headline=TOP_1,
    other_data=True,
    epochs=USUAL.epochs,
    rates=USUAL.rates,
    centre=MOCO_CENTRE,
    explained=EXPLAINED,
)
