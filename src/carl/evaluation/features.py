"""Representations of images by a frozen encoder, each image exactly once and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from carl.data.images import Split, Statistics
from carl.data.views import Views, pipeline


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Eval mode and no gradients inside; each part's own mode is put back after."""
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
) -> Tensor:
    """`function` of every image (of `rows`), resized and normalised as in training: a (N, ...) CPU tensor."""
    views = Views(pipeline("eval", image_size), statistics.mean, statistics.std, seed=0)
    rows = np.arange(len(split)) if rows is None else rows
    results: list[Tensor] = []
    for start in range(0, len(rows), batch_size):
        chosen = rows[start : start + batch_size]
        images = torch.from_numpy(split.images.gather(chosen)).to(device)
        (view,) = views(images, torch.from_numpy(chosen).to(device), 0)
        results.append(function(view).float().cpu())
    return torch.cat(results)


def extract_features(
    encoder: nn.Module,
    split: Split,
    statistics: Statistics,
    image_size: int,
    device: torch.device,
    rows: np.ndarray | None = None,
) -> Tensor:
    """Pooled features of the frozen encoder: (N, D) on the CPU."""
    with frozen(encoder):
        return map_images(encoder, split, statistics, image_size, device, rows)
