"""A data source: squares of many shades, the dark and the bright ones being classes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from carl.data.listing import ArraySplit, Listing
from carl.data.sources.base import Request, Source


def list_squares(asked: Request) -> Listing:
    def read() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for shade in range(0, 240, 5):
            yield np.full((1, 16, 16, 3), shade, np.uint8), np.array([shade >= 120])

    splits = {"train": ArraySplit(48, read), "test": ArraySplit(48, read)}
    return Listing(asked.name, "toy", splits, class_names=("dark", "bright"))


TOY_SOURCE = Source("Squares of 48 shades, to play with.", list_squares)
