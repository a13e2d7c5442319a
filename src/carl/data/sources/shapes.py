"""Procedural images of ten shapes, so that everything runs with no download.

A figure of one of ten shapes lies on a ground. The label is the shape alone: all classes share the
distributions of area, position, rotation, colour, texture, noise and occlusion, and the figure is as often
lighter than the ground as darker. So neither colour, nor area, nor a linear reading of the pixels gives the
class away; tests/data/test_shapes.py measures all three.

Textures are fine, 3 to 6 px a period: coarser ones were tried first, and two views of an image then shared their
texture more than their figure, so that learning from views learned texture.

Only NumPy, and float32 throughout. `N` images, `S` pixels per side. Coordinates run over [-1, 1], so a figure's
area is out of 4.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from carl.data.listing import ArraySplit, Listing, files_key
from carl.data.sources.base import Request, Source
from carl.records.known_data import KNOWN_DATA

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]
Inside = Callable[[Floats, Floats], Mask]

KNOWN = KNOWN_DATA["shapes"]
SIZE = KNOWN.side
_SUPERSAMPLE = 3  # sub-pixels per side: ten grey levels at an edge, for a third of the total time
_CHUNK = 250  # images drawn from one generator; a multiple of ten. Keeps a chunk's arrays under 10 MB each


def _disc(x: Floats, y: Floats) -> Mask:
    return x * x + y * y < 1


def _square(x: Floats, y: Floats) -> Mask:
    return np.maximum(np.abs(x), np.abs(y)) < 1


def _triangle(x: Floats, y: Floats) -> Mask:
    return np.maximum(-y, (np.float32(3**0.5) * np.abs(x) + y) / 2) < 0.5


def _star(x: Floats, y: Floats) -> Mask:
    """Five points; the inner corners lie at 0.42 of the radius of the points."""
    sector = np.float32(2 * np.pi / 5)
    # Folded to the angle from the axis of the nearest point.
    angle = np.abs(np.mod(np.arctan2(x, y) + sector / 2, sector) - sector / 2)
    radius = np.hypot(x, y)
    along, across = radius * np.cos(angle), radius * np.sin(angle)
    inner_along, inner_across = 0.42 * np.cos(np.pi / 5), 0.42 * np.sin(np.pi / 5)
    return along * np.float32(inner_across) + across * np.float32(1 - inner_along) < np.float32(inner_across)


def _cross(x: Floats, y: Floats) -> Mask:
    return (np.maximum(np.abs(x), np.abs(y)) < 1) & (np.minimum(np.abs(x), np.abs(y)) < 0.3)


def _ring(x: Floats, y: Floats) -> Mask:
    squared = x * x + y * y
    return (squared < 1) & (squared > 0.5**2)


def _crescent(x: Floats, y: Floats) -> Mask:
    x = x - np.float32(0.35)  # centres the visible part
    return (x * x + y * y < 1) & ((x - np.float32(0.55)) ** 2 + y * y > 0.8**2)


def _hourglass(x: Floats, y: Floats) -> Mask:
    return (np.abs(y) < 1) & (np.abs(x) < np.abs(y))


def _ell(x: Floats, y: Floats) -> Mask:
    x, y = x - np.float32(0.25), y - np.float32(0.25)  # centres the visible part
    return (np.maximum(np.abs(x), np.abs(y)) < 1) & (np.minimum(x, y) < -0.35)


def _bars(x: Floats, y: Floats) -> Mask:
    return (np.abs(x) < 1) & (np.abs(y) < 1) & (np.abs(y) > 0.3)


# Each keeps its class under rotation and reflection, and is told from the others at 32 px (a hexagon would
# not be, from a disc).
_SHAPES: dict[str, Inside] = {
    "disc": _disc,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "ring": _ring,
    "crescent": _crescent,
    "hourglass": _hourglass,
    "ell": _ell,
    "bars": _bars,
}
CLASS_NAMES: tuple[str, ...] = tuple(_SHAPES)


def make_shapes(count: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """`count` images (count, 32, 32, 3) and labels (count,), classes balanced, the same for the same seed.

    A smaller count gives a prefix of a larger one. Each ten images from the start hold every class once.
    """
    if count < 1:
        raise ValueError(f"count={count} images cannot be drawn; ask for at least 1")
    if seed < 0:
        raise ValueError(f"seed={seed} cannot seed a generator; use 0 or more")
    images = np.empty((count, SIZE, SIZE, 3), np.uint8)
    labels = np.empty(count, np.int64)
    for start in range(0, count, _CHUNK):
        end = min(start + _CHUNK, count)
        # The last chunk is drawn whole and cut, so that image i does not depend on count.
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(start // _CHUNK,))))
        chunk_images, chunk_labels = _draw_chunk(rng)
        images[start:end], labels[start:end] = chunk_images[: end - start], chunk_labels[: end - start]
    return images, labels


def _draw_chunk(rng: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    tens = np.tile(np.arange(len(_SHAPES), dtype=np.int64), (_CHUNK // len(_SHAPES), 1))
    labels = rng.permuted(tens, axis=1).reshape(-1)  # (N,)
    figure = draw_figures(rng, labels)[..., None]  # (N, S, S, 1)
    patch, patch_colour = _patches(rng)
    ground_colour, figure_colour = _colour_pairs(rng)
    images = ground_colour + _textures(rng) * (1 - figure)  # (N, S, S, 3)
    images += figure * (figure_colour - ground_colour + _textures(rng))
    images += patch * (patch_colour - images)
    images += _uniform(rng, 0.0, 0.08) * rng.standard_normal(images.shape, np.float32)
    return np.rint(np.clip(images, 0, 1) * 255).astype(np.uint8), labels


def _uniform(rng: np.random.Generator, low: float, high: float, channels: int = 1) -> Floats:
    """One draw for each image of a chunk, (N, 1, 1, channels)."""
    return rng.uniform(low, high, (_CHUNK, 1, 1, channels)).astype(np.float32)


def _grid(per_pixel: int) -> tuple[Floats, Floats]:
    """Coordinates of the centres of sub-pixels, (1, S * per_pixel) and (S * per_pixel, 1)."""
    count = SIZE * per_pixel
    centres = ((2 * np.arange(count) + 1) / count - 1).astype(np.float32)
    return centres[None, :], centres[:, None]


@cache
def _unit_area(name: str) -> np.float32:
    """Area of a shape as its function gives it, by counting; each fits in [-1.5, 1.5] squared."""
    x = np.linspace(-1.5, 1.5, 600, dtype=np.float32)
    return np.float32(_SHAPES[name](x[None, :], x[:, None]).mean() * 3**2)


def draw_figures(rng: np.random.Generator, labels: NDArray[np.int64]) -> Floats:
    """Share of each pixel that the figure covers, (N, S, S)."""
    # Of 4: a disc is 47 to 67% of the side across.
    area = rng.uniform(0.7, 1.4, len(labels)).astype(np.float32)
    angle = rng.uniform(0, 2 * np.pi, len(labels)).astype(np.float32)
    centre = rng.uniform(-0.3, 0.3, (len(labels), 2)).astype(np.float32)
    covered = np.empty((len(labels), SIZE, SIZE), np.float32)
    column, row = _grid(_SUPERSAMPLE)
    for label, (name, inside) in enumerate(_SHAPES.items()):
        (chosen,) = np.nonzero(labels == label)
        scale = np.sqrt(area[chosen] / _unit_area(name))[:, None, None]
        cos, sin = np.cos(angle[chosen])[:, None, None] / scale, np.sin(angle[chosen])[:, None, None] / scale
        x, y = column - centre[chosen, 0, None, None], row - centre[chosen, 1, None, None]
        hits = inside(cos * x + sin * y, cos * y - sin * x)
        blocks = hits.reshape(-1, SIZE, _SUPERSAMPLE, SIZE, _SUPERSAMPLE)
        covered[chosen] = blocks.mean(axis=(2, 4), dtype=np.float32)
    return covered


def _colour_pairs(rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Colours of ground and figure, (N, 1, 1, 3) each: apart in lightness, either lighter; any hue."""
    polarity = np.where(rng.random((_CHUNK, 1, 1, 1)) < 0.5, -1, 1).astype(np.float32)
    half_gap = polarity * _uniform(rng, 0.13, 0.25)
    middle = _uniform(rng, 0.35, 0.65)
    hues = [_uniform(rng, -0.25, 0.25, channels=3) for _ in range(2)]
    tints = [hue - hue.mean(axis=-1, keepdims=True) for hue in hues]
    return middle - half_gap + tints[0], middle + half_gap + tints[1]


def _textures(rng: np.random.Generator) -> Floats:
    """A gradient, stripes or checks for each image, to add to its colour, (N, S, S, 1)."""
    column, row = (axis[..., None] for axis in _grid(1))
    angle, amplitude = _uniform(rng, 0, 2 * np.pi), _uniform(rng, 0, 0.08)
    along, across = np.cos(angle) * column + np.sin(angle) * row, np.cos(angle) * row - np.sin(angle) * column
    frequency = np.pi * _uniform(rng, 5, 10)  # 5 to 10 periods across the image: 3 to 6 px, which a blur removes
    # A clipped sine is a square wave with soft edges: no aliasing at one sample a pixel.
    stripes = np.clip(2 * np.sin(frequency * along + _uniform(rng, 0, 2 * np.pi)), -1, 1)
    checks = stripes * np.clip(2 * np.sin(frequency * across + _uniform(rng, 0, 2 * np.pi)), -1, 1)
    kind = rng.integers(0, 3, (_CHUNK, 1, 1, 1))
    pattern = np.where(kind == 0, 1.5 * along, np.where(kind == 1, stripes, checks))
    return amplitude * pattern.astype(np.float32)


def _patches(rng: np.random.Generator) -> tuple[Floats, Floats]:
    """An occluding rectangle for each image, 4 to 9 px a side: mask (N, S, S, 1), colour (N, 1, 1, 3)."""
    column, row = (axis[..., None] for axis in _grid(1))
    width, height = _uniform(rng, 0.12, 0.28), _uniform(rng, 0.12, 0.28)
    left, top = _uniform(rng, -0.7, 0.7), _uniform(rng, -0.7, 0.7)
    mask = (np.abs(column - left) < width) & (np.abs(row - top) < height)
    return mask.astype(np.float32), _uniform(rng, 0, 1, channels=3)


def list_shapes(asked: Request) -> Listing:
    def split(count: int, seed: int) -> ArraySplit:
        return ArraySplit(count, lambda: iter([make_shapes(count, seed)]))

    return Listing(
        name=asked.name,
        key=files_key([Path(__file__)]),  # drawn anew when the drawing changes
        splits={"train": split(KNOWN.labelled, seed=0), "test": split(KNOWN.test, seed=1)},
        class_names=tuple(CLASS_NAMES),
    )


SHAPES = Source(
    about=f"Built-in drawings called {KNOWN.in_words()} (no download).",
    list=list_shapes,
)
