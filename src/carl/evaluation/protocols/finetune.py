"""Fine-tuning of the whole encoder on all labels.

The paper says 50 epochs and nothing more; this recipe, `simclr-bn`, fills in the rest from others' work.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from carl.evaluation.protocols.base import TOP_1, EvaluationRequest, Outcome, Protocol

if TYPE_CHECKING:
    from torch import nn

    from carl.evaluation.evaluation_data import EvaluationData
    from carl.methods import Method


@dataclass(frozen=True)
class FinetuneRecipe:
    """SimCLR's fine-tuning (Chen et al. 2020, B.5), with features normalised before the linear layer."""

    name: str = "simclr-bn"
    # Normalised as in MAE's linear probe (He et al. 2022, A.1): one rate then fits encoders of any feature size.
    head: str = "batch norm without parameters, then a linear layer that starts at zero"
    epochs: int = 50  # paper, section 5
    batch_size: int = 256  # paper, appendix A; fewer images are one batch
    rate: float = 0.05  # at batch 256, in proportion to the batch; encoder and head alike (SimCLR B.5)
    schedule: str = "cosine to 0"  # SimCLR B.5 has a constant rate for fewer epochs
    momentum: float = 0.9  # Nesterov's (SimCLR B.5)
    weight_decay: float = 0.0  # SimCLR B.5
    augmentation: str = "random crop and flip"  # SimCLR B.5
    batch_norm: str = "trained, with the statistics of each batch"  # SimCLR B.5


USUAL = FinetuneRecipe()


def asked_for(request: EvaluationRequest) -> FinetuneRecipe:
    return replace(USUAL, epochs=request.epochs or USUAL.epochs)


def measure(
    encoder: nn.Module, method: Method | None, data: EvaluationData, request: EvaluationRequest, seed: int
) -> Outcome:
    from carl.evaluation.fine_tuning import finetune

    found = finetune(encoder, data, asked_for(request), 1.0, seed)
    return Outcome.of(found.accuracy, {"labels": len(found.rows), "rows": "all"})


def values(request: EvaluationRequest) -> dict[str, Any]:
    return asdict(asked_for(request))


FINETUNE = Protocol(
    title="fine-tuned",
    heading="accuracy after fine-tuning",
    kind="offline: the whole encoder is fine-tuned on all labels",
    measure=measure,
    values=values,
    headline=TOP_1,
    trains_encoder=True,
    epochs=USUAL.epochs,
)
