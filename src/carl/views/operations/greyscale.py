"""Greyscale: colours replaced by their luma, with the formula of torchvision's tensor function."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from carl.config import Probability
from carl.views.operations.operation import Drawn, Operation

GREY_WEIGHTS = (0.2989, 0.587, 0.114)  # torchvision.transforms.functional.rgb_to_grayscale (ITU-R BT.601)


class Greyscale(Operation):
    grey: Probability = Field(0.2, description="Probability of a greyscale view.")  # SimCLR, appendix A

    needs_colour: ClassVar[bool] = True
    places: ClassVar[tuple[int, ...]] = (26,)

    @property
    def probability(self) -> float:
        return self.grey

    def apply(self, views: Tensor, drawn: Drawn) -> Tensor:
        return greyscale(views)


def grey_level(images: Tensor) -> Tensor:
    """Luma (B, 1, S, S)."""
    red, green, blue = GREY_WEIGHTS
    level = images[:, 0:1] * red
    return level.add_(images[:, 1:2], alpha=green).add_(images[:, 2:3], alpha=blue)


def greyscale(images: Tensor) -> Tensor:
    """All three channels replaced by the luma."""
    return grey_level(images).expand_as(images)
