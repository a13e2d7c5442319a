"""The paper's equations as functions of tensors. B: pairs in a batch, V: views of an image, K: prototypes."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

from carl import distributed

Targets = Literal["joint", "sum", "average"]
PriorMean = Literal["all", "each"]


def log_assignments(logits: Tensor) -> Tensor:
    """Log-probability of each prototype given a view (Eq. 3), in float32 whatever the precision of training."""
    return logits.float().log_softmax(dim=-1) if logits.dtype.itemsize < 4 else logits.log_softmax(dim=-1)


def assignment_consistency(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Negative log-probability that two views choose the same prototype (Eq. 4).

    Computed in log space: a clamp would zero the gradient of the pairs that disagree most.
    """
    return -(log_p + log_q).logsumexp(dim=1).mean()  # (B, K) -> ()


def consistency(log_p: Tensor, log_q: Tensor, targets: Targets = "joint") -> Tensor:
    """Eq. 4 in one of three readings of how the gradient flows.

    `joint`: as the equation is written, both views carry the gradient.
    `sum`: each view in turn is a fixed target for the other, the two terms added; its gradient is exactly
    that of `joint`, its value twice as high.
    `average`: the same, averaged, as in the authors' later code; half the gradient, so the prior weighs double.
    """
    if targets == "joint":
        return assignment_consistency(log_p, log_q)
    both = assignment_consistency(log_p, log_q.detach()) + assignment_consistency(log_p.detach(), log_q)
    return both if targets == "sum" else both / 2


def kl_to_uniform(log_mean: Tensor) -> Tensor:
    """KL divergence of the mean assignment, given as its logarithm, from the uniform distribution (Eq. 5).

    log K + sum_c p_c log p_c; a prototype of probability zero adds nothing and has a zero gradient.
    """
    return math.log(log_mean.shape[-1]) + (log_mean.exp() * log_mean).sum()  # (K,) -> ()


def uniform_prior(log_p: Tensor, mean_over: PriorMean = "all") -> Tensor:
    """KL to uniform of the mean assignment (Eq. 5, 6) over the batch of all processes: (V, B, K) -> ().

    `all`: one mean over all views, as in CARP, the authors' next method. `each`: a mean and a divergence per
    view, averaged: the other reading of Eq. 6.
    """
    if mean_over == "all":
        return kl_to_uniform(distributed.log_mean_exp(log_p.flatten(0, 1)))
    terms = [kl_to_uniform(distributed.log_mean_exp(view)) for view in log_p]
    return sum(terms[1:], start=terms[0]) / len(terms)
