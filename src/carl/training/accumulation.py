"""One optimiser step from a batch that goes through the encoder in parts.

Plain accumulation would average the losses of the parts, and CARL's prior would see the mean assignment of a
part instead of the batch's. Here each part goes through the encoder twice: first without gradients, to give the
objective the whole batch; then again with them, to send the objective's gradient back (Gao et al. 2021,
GradCache). The loss and its gradient are those of the whole batch. What changes: one more forward pass, and batch
norm, which normalises within a part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from carl.data.batches.base import Batch
from carl.device import get_random_state, set_random_state
from carl.methods.base import Method, Metrics


@contextmanager
def running_statistics_kept(module: nn.Module) -> Iterator[None]:
    """Inside, batch norms use the batch's statistics and leave their running statistics alone."""
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


def backward_in_parts(
    method: Method, batch: Batch, progress: float, parts: int, autocast: torch.autocast, scale: Tensor | float
) -> Metrics:
    """Compute the gradients of the whole batch's loss, times `scale`. Returns the figures to log."""
    count = len(batch.indices)
    size = max(2, math.ceil(count / parts))  # batch norm needs two images
    starts = list(range(0, count, size))
    if len(starts) > 1 and count - starts[-1] < 2:
        starts.pop()
    ends = [*starts[1:], count]
    pieces = [batch.part(slice(start, end)) for start, end in zip(starts, ends, strict=True)]
    random_states = []
    with torch.no_grad(), running_statistics_kept(method), autocast:
        outputs = []
        for piece in pieces:
            random_states.append((torch.get_rng_state(), get_random_state(batch.indices.device)))
            outputs.append(method.represent(piece))
    represented = torch.cat(outputs, dim=1).requires_grad_()
    with autocast:
        loss, metrics = method.objective(represented, batch, progress)
    (loss * scale).backward()
    assert represented.grad is not None
    gradients = represented.grad.split([len(piece.indices) for piece in pieces], dim=1)
    for piece, gradient, (state, device_state) in zip(pieces, gradients, random_states, strict=True):
        torch.set_rng_state(state)  # the same dropout as in the first pass
        set_random_state(batch.indices.device, device_state)
        with autocast:
            output = method.represent(piece)
        output.backward(gradient.to(output.dtype))
    return metrics
