"""Losses for heads on fixed features whose positives are neighbours: SCAN's and TEMI's. CARL's are in losses.py.

B: pairs of an image and its neighbour, H: heads trained side by side, K: groups.
"""

from __future__ import annotations

import math

from torch import Tensor

from carl import distributed
from carl.methods.losses import assignment_consistency, kl_to_uniform


def scan_loss(log_p: Tensor, log_q: Tensor, entropy_weight: float) -> Tensor:
    """Image and neighbour choose the same group, minus the weighted entropy of the images' mean (SCAN, Eq. 2).

    (B, K) x 2 -> (), or the sum over heads: (B, H, K) x 2 -> (). It is CARL's loss (Eq. 7) with a mean over the
    images alone, without their neighbours, less the constant `entropy_weight` ln K.
    """
    log_mean = distributed.log_mean_exp(log_p)  # ([H,] K)
    heads = log_mean.numel() // log_mean.shape[-1]
    minus_entropy = kl_to_uniform(log_mean) - heads * math.log(log_mean.shape[-1])
    return assignment_consistency(log_p, log_q) + entropy_weight * minus_entropy


def pointwise_mutual_information(log_p: Tensor, log_q: Tensor, log_marginal: Tensor, beta: float) -> Tensor:
    """log sum_k (p_k q_k)^beta / m_k, which is how much more often a pair agrees than by chance (TEMI, Eq. 7).

    (B, H, K) x 2, (H, K) -> (B, H). `beta` below 1 keeps groups in use that few images choose.
    """
    return (beta * (log_p + log_q) - log_marginal).logsumexp(dim=-1)


def temi_loss(student: Tensor, teacher: Tensor, log_marginal: Tensor, beta: float) -> Tensor:
    """Weighted pointwise mutual information of image and neighbour, mean over heads (TEMI, Eq. 9): -> ().

    `student` and `teacher` (2, B, H, K) are log-assignments of images and neighbours, the teacher's without gradient.
    A pair weighs as much as the teachers of all heads on average agree about it: wrong neighbours count little.
    """
    weights = (teacher[0] + teacher[1]).logsumexp(dim=-1).exp().mean(dim=1)  # (B,)
    there = pointwise_mutual_information(student[0], teacher[1], log_marginal, beta)
    back = pointwise_mutual_information(student[1], teacher[0], log_marginal, beta)
    return -(weights[:, None] * (there + back) / 2).mean()
