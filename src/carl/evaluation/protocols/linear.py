"""The linear protocol of MoCo (He et al. 2020, main_lincls.py), which the paper follows."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from carl.errors import UserError
from carl.evaluation.protocols.base import TOP_1, EvaluationRequest, Outcome, Protocol

if TYPE_CHECKING:
    from torch import nn

    from carl.evaluation.evaluation_data import EvaluationData
    from carl.methods import Method

MOCO_CENTRE = 0.875  # 224 of 256 pixels, where MoCo's script judges
MOCO_CROP = 0.08  # smallest area of a crop in torchvision's RandomResizedCrop, which main_lincls.py uses as it is


@dataclass(frozen=True)
class LinearRecipe:
    """Values of MoCo's main_lincls.py."""

    epochs: int = 100
    rates: tuple[float, ...] = (30.0,)  # with several, one is chosen on a part of the training images
    milestones: tuple[float, ...] = (0.6, 0.8)  # parts of the epochs after which the rate is divided by ten
    batch_size: int = 256
    momentum: float = 0.9
    weight_decay: float = 0.0

    def factor(self, epoch: int) -> float:
        """The factor by which the rate is multiplied in this epoch."""
        return float(0.1 ** sum(epoch >= round(part * self.epochs) for part in self.milestones))


USUAL = LinearRecipe()
EXPLAINED = {"milestones": "of the epochs, the rate divided by 10 at each"}


def asked_for(request: EvaluationRequest, usual: LinearRecipe = USUAL) -> LinearRecipe:
    return replace(usual, epochs=request.epochs or usual.epochs, rates=request.rates or usual.rates)


def measure(
    encoder: nn.Module, method: Method | None, data: EvaluationData, request: EvaluationRequest, seed: int
) -> Outcome:
    return measure_by(asked_for(request), encoder, data, seed)


def measure_by(recipe: LinearRecipe, encoder: nn.Module, data: EvaluationData, seed: int) -> Outcome:
    from carl.evaluation.linear_classifiers import linear_evaluation

    found = linear_evaluation(encoder, data, recipe, seed)
    validation = {f"{rate:g}": round(value, 2) for rate, value in found.validation.items()}
    return Outcome.of(found.accuracy, {"rate": found.rate, "validation": validation})


def values(request: EvaluationRequest) -> dict[str, Any]:
    return asdict(asked_for(request))


def check_rates(request: EvaluationRequest) -> None:
    wrong = next((rate for rate in request.rates if not 0 < rate < math.inf), None)
    if wrong is not None:
        raise UserError(f"--rates {wrong:g}: rates are numbers above 0; use for example 30,3,0.3")


LINEAR = Protocol(
    title="linear",
    heading="linear accuracy",
    kind="offline: MoCo's protocol, SGD on a linear layer over the frozen encoder, random crops and flips",
    measure=measure,
    values=values,
    check=check_rates,
    headline=TOP_1,
    stands_for_encoder=True,
    epochs=USUAL.epochs,
    rates=USUAL.rates,
    centre=MOCO_CENTRE,
    explained=EXPLAINED,
)
