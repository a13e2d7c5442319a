"""What every view operation has: options, random numbers, and a change of pixels.

The smallest operation is a probability and a function:

    class Invert(Operation):
        invert: Probability = Field(0.0, description="Probability of an inverted view.")

        @property
        def probability(self) -> float:
            return self.invert

        def apply(self, views: Tensor, drawn: Drawn) -> Tensor:
            return 1.0 - views

Shapes: B samples, C channels, S side of the view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from carl.config import Section, validated


@dataclass(frozen=True, eq=False)
class Drawn:
    """What an operation drew for one view of each sample. An operation that draws more adds fields of its own."""

    chosen: Tensor  # (B,) bool: the samples that the operation changes

    def take(self, rows: Tensor | slice) -> Self:
        """What was drawn for the samples at `rows`, in their order."""
        return type(self)(*(getattr(self, field.name)[rows] for field in fields(self)))


class Operation(Section):
    """A change that a view goes through with some probability.

    The fields of a subclass are its options. Pipelines set them in a `ViewRecipe` and users in the section `[views]`,
    by the same names, so two operations cannot share one. The defaults are SimCLR's; an operation that SimCLR does
    not have is off by default.
    """

    needs_colour: ClassVar[bool] = False  # then images without exactly three channels are left as they are
    draws: ClassVar[int] = 1  # random numbers for each sample
    # The first operations share one list of random numbers per sample and say which are theirs. A later operation
    # leaves this empty and gets a list of its own, so that no other operation's numbers change.
    places: ClassVar[tuple[int, ...]] = ()

    @property
    def probability(self) -> float:
        raise NotImplementedError

    def with_options(self, given: Mapping[str, Any]) -> Self:
        """The operation with the options that are given, and its own values for the others."""
        return validated(type(self), {**self.model_dump(), **given}, "")

    def check_side(self, size: int) -> None:
        """Raise a UserError if the options do not suit views of `size` pixels."""

    def details(self, size: int) -> str:
        """The values besides the probability, in words, for views of `size` pixels."""
        return ""

    def draw(self, numbers: Sequence[Tensor], size: int) -> Drawn:
        """Parameters from random numbers, each (B,) in [0, 1), for views of `size` pixels."""
        return Drawn(numbers[0] < self.probability)

    def apply(self, views: Tensor, drawn: Any) -> Tensor:
        """All `views` (B, C, S, S) in [0, 1], changed by what `draw` gave for them. The input must stay as it is."""
        raise NotImplementedError

    # How the executors call an operation. Override these only if there is a faster way than `apply`.

    def apply_masked(self, views: Tensor, drawn: Any) -> Tensor:
        """The views after the operation, those of samples that it was not drawn for unchanged.

        This runs on devices such as GPUs, where the host must not wait for a value.
        """
        return torch.where(drawn.chosen[:, None, None, None], self.apply(views, drawn), views)

    def apply_sorted_(self, views: Tensor, drawn: Any) -> None:
        """Change `views` in place: exactly the samples that the operation was drawn for, sorted by its `sort_key`.

        This runs on CPUs.
        """
        views.copy_(self.apply(views, drawn))

    def sort_key(self, drawn: Any) -> Tensor | None:
        """(B,) small whole numbers by which samples are sorted for `apply_sorted_`; None if their order is all one.

        Two operations without keys that follow each other share a sorting, which saves time.
        """
        return None
