"""An image at the moment it is decoded, as quality checks see it: before it is cropped and scaled for an encoder."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from PIL import Image

SIDE = 128  # px: longest side at which pixels are looked at; a larger image is averaged over whole blocks first


class Picture:
    """The size of an image, its pixels in RGB, and what tells it from every other image.

    `whole` is the image as decoded, upright. A large JPEG may have been decoded at a half, a quarter or an eighth of
    `width` and `height`, which are those of the file. What several checks need is worked out once.
    """

    def __init__(self, whole: Image.Image, width: int, height: int, digest: str) -> None:
        self.whole = whole
        self.width, self.height = width, height
        self.digest = digest  # of the content, 32 hexadecimal digits

    @cached_property
    def small(self) -> Image.Image:
        """The image in RGB with sides of at most SIDE."""
        factor = -(-max(self.whole.size) // SIDE)
        return self.whole if factor == 1 else self.whole.reduce(factor)

    @cached_property
    def bands(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Red, green and blue of `small`, each (h, w) uint8."""
        red, green, blue = map(np.asarray, self.small.split())
        return red, green, blue

    @cached_property
    def grey(self) -> Image.Image:
        """`small` in shades of grey."""
        return self.small.convert("L")

    @cached_property
    def mean_colour(self) -> tuple[int, int, int]:
        """The mean red, green and blue, rounded."""
        counts = np.array(self.small.histogram()).reshape(3, 256)
        red, green, blue = np.rint(counts @ _LEVELS / counts[0].sum()).astype(int).tolist()
        return red, green, blue

    @cached_property
    def brightness_counts(self) -> np.ndarray:
        """How many pixels of `small` have each brightness, in steps of 1 / _STEPS from dark to bright.

        The perceived brightness is the root of a weighted mean of squares (Finley, "HSP colour model", 2006), as
        CleanVision has it.
        """
        red, green, blue = self.bands
        squares = _SQUARES[0][red] + _SQUARES[1][green] + _SQUARES[2][blue]  # of the brightness, of 65,025
        return np.bincount(_ROOTS[squares >> 4].reshape(-1), minlength=_STEPS + 1)

    def brightness_at(self, part: float) -> float:
        """The brightness, from 0 to 1, that `part` of the pixels do not exceed."""
        return quantile(self.brightness_counts, part) / _STEPS


def quantile(counts: np.ndarray, part: float) -> int:
    """The lowest value that `part` of all do not exceed, where `counts` says how often there is each."""
    upto = np.cumsum(counts)
    return int(np.searchsorted(upto, part * upto[-1]))


_LEVELS = np.arange(256)
_STEPS = 1000
_SQUARES = tuple(np.rint(weight * _LEVELS**2).astype(np.uint32) for weight in (0.241, 0.691, 0.068))
# By a sixteenth of the square, taken at the middle of the sixteen.
_ROOTS = np.rint(np.sqrt(np.minimum(np.arange(65_536 // 16) * 16 + 8, 65_025)) / 255 * _STEPS).astype(np.int64)
