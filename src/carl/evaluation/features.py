"""Representations of images by a frozen encoder, each image exactly once and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from carl import distributed
from carl.data.dataset import Split, Statistics
from carl.views.recipes import pipeline
from carl.views.views import Views

Progress = Callable[[str, int, int], None]  # what, done, total


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Eval mode and no gradients inside. Every module gets its own mode back afterwards."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for part in training:
            part.training = True


def map_images(
    function: Callable[[Tensor], Tensor],
    split: Split,
    statistics: Statistics,
    image_size: int,
    device: torch.device,
    rows: np.ndarray | None = None,
    batch_size: int = 256,
    progress: Progress | None = None,
    centre: float = 1.0,
) -> Tensor:
    """`function` of every image (of `rows`), resized and normalised as in training: a (N, ...) CPU tensor."""
    (recipe,) = pipeline("eval", image_size)
    views = Views([replace(recipe, centre=centre)], statistics.mean, statistics.std, seed=0)
    rows = np.arange(len(split)) if rows is None else rows
    results: list[Tensor] = []
    for start in range(0, len(rows), batch_size):
        chosen = rows[start : start + batch_size]
        images = torch.from_numpy(split.images.gather(chosen)).to(device)
        (view,) = views(images, torch.from_numpy(chosen).to(device), 0)
        results.append(function(view).float().cpu())
        if progress is not None and start // batch_size % 10 == 9:
            progress("images read", start + len(chosen), len(rows))
    return torch.cat(results)


def map_images_together(
    function: Callable[[Tensor], Tensor],
    split: Split,
    statistics: Statistics,
    image_size: int,
    device: torch.device,
    progress: Progress | None = None,
    centre: float = 1.0,
) -> Tensor:
    """`map_images` of all images, shared among the processes; each gets the whole result."""
    with distributed.computing_together():
        if distributed.world_size() == 1:
            return map_images(function, split, statistics, image_size, device, progress=progress, centre=centre)
        rows = np.arange(distributed.rank(), len(split), distributed.world_size())
        if not len(rows):  # more processes than images: the shape of a result is known from one
            found = map_images(function, split, statistics, image_size, device, np.zeros(1, np.int64))[:0]
        else:
            found = map_images(function, split, statistics, image_size, device, rows, progress=progress, centre=centre)
        return distributed.laid_out(found.to(device), torch.from_numpy(rows).to(device), len(split)).cpu()


def extract_features(
    encoder: nn.Module,
    split: Split,
    statistics: Statistics,
    image_size: int,
    device: torch.device,
    rows: np.ndarray | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """Pooled features of the frozen encoder: (N, D) on the CPU."""
    with frozen(encoder):
        return map_images(encoder, split, statistics, image_size, device, rows, progress=progress)
