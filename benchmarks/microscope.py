"""Images far from photographs, for measurements: tissues under a microscope, drawn by NumPy and SciPy.

The class is the tissue: size, density, length and regularity of its cells. Stain, focus, light, noise and direction
vary and say nothing about it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy import ndimage

CLASSES, SIDE = 20, 64


def tissues(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` images (N, 64, 64, 3) uint8 and their tissue (N,), as many of each as of the others."""
    rng, kinds = np.random.default_rng(seed), np.random.default_rng(7)
    known = [
        (kinds.uniform(2.0, 7.0), kinds.uniform(0.25, 0.7), kinds.uniform(1, 3), kinds.uniform(0, 1))
        for _ in range(CLASSES)
    ]
    labels = rng.permutation(np.arange(count) % CLASSES)
    images = np.stack([_tissue(rng, *known[label]) for label in labels])
    return images, labels.astype(np.int64)


def _tissue(rng: np.random.Generator, size: float, density: float, length: float, regularity: float) -> np.ndarray:
    """Noise with the spectrum of the cells, cut at their density, then stained, lit and seen a little out of focus."""
    down, across = np.fft.fftfreq(SIDE)[:, None], np.fft.fftfreq(SIDE)[None]
    angle = rng.uniform(0, np.pi)
    along, beside = (
        across * np.cos(angle) + down * np.sin(angle),
        down * np.cos(angle) - across * np.sin(angle),
    )
    frequency = np.sqrt((along * length) ** 2 + beside**2) * size * 2
    spectrum = np.exp(-(((frequency - 1) / 0.35) ** 2)) * regularity + np.exp(-(frequency**2)) * (1 - regularity)
    field = np.fft.ifft2(np.fft.fft2(rng.normal(size=(SIDE, SIDE))) * spectrum).real
    cells = ndimage.gaussian_filter((field > np.quantile(field, 1 - density)).astype(float), rng.uniform(0.4, 1.3))
    ground, stain = rng.uniform(0.45, 0.95, 3), rng.uniform(0.05, 0.6, 3)
    y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
    light = 1 - rng.uniform(0, 0.45) * ((x - rng.uniform(-0.5, 0.5)) ** 2 + (y - rng.uniform(-0.5, 0.5)) ** 2)
    image = (ground + (stain - ground) * cells[..., None]) * light[..., None]
    image += rng.normal(size=image.shape) * rng.uniform(0.01, 0.06)
    return np.asarray(np.clip(image, 0, 1) * 255, dtype=np.uint8)


def write(path: Path, train: int, test: int) -> Path:
    """A .npz file with training and test images that share nothing but their tissues."""
    (images, labels), (test_images, test_labels) = tissues(train, 1), tissues(test, 2)
    np.savez(path, x_train=images, y_train=labels, x_test=test_images, y_test=test_labels)
    return path
