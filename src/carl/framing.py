"""How an image of any size is brought to the size that an encoder sees. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Interpolation = Literal["bicubic", "bilinear", "nearest", "box", "hamming", "lanczos"]  # as Pillow names them
Box = tuple[float, float, float, float]  # left, top, right and bottom of a part of an image, in its pixels


@dataclass(frozen=True)
class Framing:
    """The size of the result, and how it is cut out of an image.

    Without `scaled`, the image is scaled until the result is just covered and its middle is cut out. With it, this is
    timm's evaluation: `cut` scales until the size `scaled` is just covered, `stretch` scales both sides to it, `pad`
    scales until the image just fits into it; then the middle is cut out, after whole pixels and with timm's rounding.
    """

    height: int
    width: int
    scaled: tuple[int, int] | None = None  # height and width
    fit: Literal["cut", "stretch", "pad"] = "cut"
    interpolation: Interpolation = "bicubic"
    fill: tuple[int, ...] = ()  # colour of what `pad` adds, per channel

    @property
    def shape(self) -> tuple[int, int]:
        return self.height, self.width

    @property
    def seen(self) -> float:
        """The part of each side of a square image that is seen."""
        return 1.0 if self.scaled is None else min(1.0, self.height / self.scaled[0])

    @property
    def source_side(self) -> int:
        """The side of a square image from which the result is cut without scaling."""
        return max(self.shape if self.scaled is None else self.scaled)

    def box(self, height: int, width: int) -> Box:
        """The part of an image of this size that is seen. For `pad` it reaches beyond the image."""
        if self.scaled is None:
            scale = min(width / self.width, height / self.height)  # source pixels per target pixel
            # Rounding can make these slightly negative, as for 47 pixels scaled to 46, and Pillow refuses that.
            left, top = max(0.0, width - scale * self.width) / 2, max(0.0, height - scale * self.height) / 2
            return left, top, width - left, height - top
        whole_height, whole_width = self.scaled_size(height, width)
        top, left = round((whole_height - self.height) / 2), round((whole_width - self.width) / 2)
        across, down = width / whole_width, height / whole_height
        return left * across, top * down, (left + self.width) * across, (top + self.height) * down

    def scaled_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the whole image when it is scaled as timm does, before the middle is cut out."""
        assert self.scaled is not None
        if self.fit == "stretch":
            return self.scaled
        down, across = height / self.scaled[0], width / self.scaled[1]
        if self.fit == "pad":
            ratio = max(down, across)
            return max(1, round(height / ratio)), max(1, round(width / ratio))
        if self.scaled[0] != self.scaled[1]:
            ratio = min(down, across)
            return round(height / ratio), round(width / ratio)
        side = self.scaled[0]
        return (side, int(side * width / height)) if height <= width else (int(side * height / width), side)
