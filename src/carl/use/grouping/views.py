"""An encoder that sees a random view of each image, so that embeddings of views are made and kept like any others."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from carl.use.encoder import UsableEncoder
from carl.views.recipes import ViewRecipe
from carl.views.views import Views

LEAST_CROP = 0.4  # part of the image; ours: a smaller cut often shows something else than the image does


@dataclass(frozen=True, eq=False, kw_only=True)
class SeesViews(UsableEncoder):
    """Sees one random cut of each image, perhaps flipped. Which one depends on the pixels and the number alone."""

    original: UsableEncoder
    number: int

    @property
    def data_root(self) -> str | None:
        return self.original.data_root

    @cached_property
    def digest(self) -> str:
        return f"{self.original.digest}-view-{self.number}-{LEAST_CROP}"

    @cached_property
    def _views(self) -> Views:
        recipe = ViewRecipe(self.image_size, (LEAST_CROP, 1.0), jitter=0.0, grey=0.0, blur=0.0)
        return Views([recipe], self.mean, self.std, seed=0)

    def views(self, pixels: np.ndarray) -> Tensor:
        """Images (B, H, W, C) uint8 as random views (B, C, S, S), normalised for the encoder."""
        images = torch.from_numpy(np.require(pixels, requirements=["C", "W"])).to(self.device)
        content = torch.tensor([zlib.crc32(one.tobytes()) for one in pixels], device=self.device)
        (view,) = self._views(images, content, self.number)
        return view


def seen_differently(encoder: UsableEncoder, number: int) -> SeesViews:
    """The encoder with the random view of that `number`."""
    return SeesViews(
        name=encoder.name,
        encoder=encoder.encoder,
        model=encoder.model,
        wanted=encoder.wanted,
        origin=encoder.origin,
        licence=encoder.licence,
        device=encoder.device,
        original=encoder,
        number=number,
    )
