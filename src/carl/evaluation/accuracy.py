"""Accuracy in its forms: top-1, top-5, per class, and the confusion matrix."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from carl.evaluation.protocols.base import TOP_1, TOP_5

Array = np.ndarray | Tensor


@dataclass(frozen=True)
class Accuracy:
    """How well scores name the true class; percentages."""

    top1: float
    top5: float  # 100 with five classes or fewer
    per_class: list[float | None]  # None for a class without test images
    confusion: list[list[int]]  # rows are true classes, columns the classes named
    right: dict[str, np.ndarray] = field(compare=False)  # `top-1` and `top-5`: which of the images (M,)

    def details(self) -> dict[str, Any]:
        """What a result file holds beside top-1 and top-5."""
        per_class = [None if value is None else round(value, 2) for value in self.per_class]
        return {"per_class": per_class, "confusion": self.confusion}


def measure_accuracy(scores: Array, truth: Array) -> Accuracy:
    """Accuracy of scores (M, classes) against the true classes (M,)."""
    scores, truth = torch.as_tensor(scores).cpu(), torch.as_tensor(truth).cpu().long()
    if not bool(torch.isfinite(scores).all()):
        raise ValueError("scores that are not finite have no accuracy; the classifier has diverged")
    classes = scores.shape[1]
    ranked = scores.topk(min(5, classes), dim=1).indices
    hits = ranked == truth[:, None]
    confusion = (truth * classes + ranked[:, 0]).bincount(minlength=classes**2).view(classes, classes)
    sizes, right = confusion.sum(1).tolist(), confusion.diagonal().tolist()
    return Accuracy(
        top1=100 * hits[:, 0].double().mean().item(),
        top5=100 * hits.any(1).double().mean().item(),
        per_class=[100 * r / n if n else None for r, n in zip(right, sizes, strict=True)],
        confusion=confusion.tolist(),
        right={TOP_1: hits[:, 0].numpy(), TOP_5: hits.any(1).numpy()},
    )
