"""A view operation: views that stand on their heads."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from carl.config import Probability
from carl.views.operations.operation import Drawn, Operation


class UpsideDown(Operation):
    upside_down: Probability = Field(0.0, description="Probability of a view that stands on its head.")

    @property
    def probability(self) -> float:
        return self.upside_down

    def apply(self, views: Tensor, drawn: Drawn) -> Tensor:
        return views.flip(2)
