"""Solarisation: bright values inverted, as in torchvision."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from carl.config import Probability
from carl.views.operations.operation import Drawn, Operation


class Solarise(Operation):
    solarise: Probability = Field(0.0, description="Probability of solarisation.")  # not in SimCLR
    solarise_threshold: float = Field(  # BYOL (Grill et al. 2020, appendix B)
        0.5, ge=0, le=1, description="Solarisation inverts values from here up; 1 is the brightest."
    )

    needs_colour: ClassVar[bool] = True
    places: ClassVar[tuple[int, ...]] = (29,)

    @property
    def probability(self) -> float:
        return self.solarise

    def apply(self, views: Tensor, drawn: Drawn) -> Tensor:
        return solarise(views, self.solarise_threshold)


def solarise(images: Tensor, threshold: float) -> Tensor:
    """Values at or above the threshold inverted."""
    return torch.where(images >= threshold, 1.0 - images, images)
