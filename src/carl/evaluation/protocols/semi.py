"""Semi-supervised: fine-tuning of the whole encoder on a part of the labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from carl.errors import UserError
from carl.evaluation.protocols import finetune
from carl.evaluation.protocols.base import TOP_1, EvaluationRequest, Outcome, Protocol

if TYPE_CHECKING:
    from torch import nn

    from carl.evaluation.evaluation_data import EvaluationData
    from carl.methods import Method

FRACTIONS = (0.01, 0.1)  # paper, table 3


def measure(
    encoder: nn.Module, method: Method | None, data: EvaluationData, request: EvaluationRequest, seed: int
) -> Outcome:
    from carl.evaluation.fine_tuning import finetune as fine_tune

    assert request.fraction is not None
    found = fine_tune(encoder, data, finetune.asked_for(request), request.fraction, seed)
    return Outcome.of(found.accuracy, {"labels": len(found.rows), "rows": found.rows.tolist()})


def values(request: EvaluationRequest) -> dict[str, Any]:
    return {**finetune.values(request), "fraction": request.fraction}


def check_fraction(request: EvaluationRequest) -> None:
    if request.fraction is not None and not 0 < request.fraction < 1:
        raise UserError(f"--fraction {request.fraction:g} is not a part of the labels; use a number between 0 and 1")


SEMI = Protocol(
    title="fine-tuned",
    heading="accuracy after fine-tuning",
    kind="offline: the whole encoder is fine-tuned on a part of the labels",
    measure=measure,
    values=values,
    check=check_fraction,
    headline=TOP_1,
    trains_encoder=True,
    epochs=finetune.USUAL.epochs,
    fractions=FRACTIONS,
)
