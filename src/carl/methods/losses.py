"""Equations of the papers as functions of tensors.

B: images in the batch of this process, N: of all processes, V: views of an image, K: prototypes, D: dimensions,
G: parts of the embedding, each with an assignment of its own; 1 in the paper.
Equation numbers are those of CARL's paper unless another is named.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from carl import distributed
from carl.precision import full_precision

Targets = Literal["joint", "sum", "average"]
PriorMean = Literal["all", "each"]
Against = Literal["pairs", "mean"]
Negatives = Literal["views", "means"]
ABSENT = -1e4  # log of a weight: far below any score over epsilon, and no sum of it is infinite


def log_assignments(logits: Tensor) -> Tensor:
    """Log-probability of each prototype given a view (Eq. 3), in float32 whatever the precision of training."""
    return logits.float().log_softmax(dim=-1) if logits.dtype.itemsize < 4 else logits.log_softmax(dim=-1)


def assignment_consistency(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Negative log-probability that two views choose the same prototype (Eq. 4).

    (B, K) x 2 -> (), or the sum over parts: (B, G, K) x 2 -> (). Computed in log space: a clamp would zero
    the gradient of the pairs that disagree most.
    """
    return -(log_p + log_q).logsumexp(dim=-1).reshape(len(log_p), -1).sum(dim=1).mean()


def targets_in_words(targets: Targets) -> str:
    """`averaged targets`"""
    return f"{'averaged' if targets == 'average' else targets} targets"


def consistency(log_p: Tensor, log_q: Tensor, targets: Targets) -> Tensor:
    """Eq. 4 in one of three readings of how the gradient flows.

    `joint`: as the equation is written, both views carry the gradient.
    `sum`: each view in turn is a fixed target for the other, and the two terms are added. The gradient is exactly
    that of `joint`, the value twice as high.
    `average`: their mean. Half the gradient, so the prior counts double. PIP-Net's loss, which it credits to CARL, has
    fixed targets. CARP averages too, but its prior's mean includes the detached teacher, so that consistency and prior
    keep the ratio they have with `joint`; see docs/reproduction.md.
    """
    if targets == "joint":
        return assignment_consistency(log_p, log_q)
    both = assignment_consistency(log_p, log_q.detach()) + assignment_consistency(log_p.detach(), log_q)
    return both if targets == "sum" else both / 2


def kl_to_uniform(log_mean: Tensor) -> Tensor:
    """KL divergence of the mean assignment, given as its logarithm, from the uniform distribution (Eq. 5).

    log K + sum_c p_c log p_c; a prototype of probability zero adds nothing and has a zero gradient. (K,) -> (), or the
    sum over parts: (G, K) -> ().
    """
    return (math.log(log_mean.shape[-1]) + (log_mean.exp() * log_mean).sum(dim=-1)).sum()


def uniform_prior(log_p: Tensor, mean_over: PriorMean = "all") -> Tensor:
    """KL to uniform of the mean assignment (Eq. 5, 6) over the batch of all processes: (V, B, K) -> ().

    `all`: one mean over all views, as in CARP, the authors' next method. `each`: a mean and a divergence per
    view, averaged: the other reading of Eq. 6. With parts, (V, B, G, K), their sum.
    """
    if mean_over == "all":
        return kl_to_uniform(distributed.log_mean_exp(log_p.flatten(0, 1)))
    terms = [kl_to_uniform(distributed.log_mean_exp(view)) for view in log_p]
    return sum(terms[1:], start=terms[0]) / len(terms)


def mean_of_others(log_large: Tensor, views: int) -> Tensor:
    """Log of the mean assignment of an image's other large views, for each of its `views`: (L, B, ..) -> (V, B, ..).

    A small view, one from the L-th on, has all large ones for others. Sums run up to each view from both ends: work
    that grows with the number of views and not with that of pairs, and nothing is subtracted in log space.
    """
    count = len(log_large)
    before, after = [log_large[0]], [log_large[-1]]
    for view in range(1, count):
        before.append(torch.logaddexp(before[-1], log_large[view]))
        after.append(torch.logaddexp(after[-1], log_large[-1 - view]))
    after.reverse()  # after[v] sums from view v on, before[v] up to it
    ends, between = [after[1], before[-2]], range(1, count - 1)
    sums = [ends[0], *(torch.logaddexp(before[view - 1], after[view + 1]) for view in between), ends[1]]
    others = [total - math.log(count - 1) for total in sums]
    return torch.stack(others + [before[-1] - math.log(count)] * (views - count))


def consistency_with_mean(log_p: Tensor, log_targets: Tensor, targets: Targets) -> Tensor:
    """Each view against a target of its own, by Eq. 4 in one of its readings: (V, B, K) x 2 -> ().

    With two views, whose targets are each other, it is `consistency`.
    """
    log_p, log_targets = log_p.flatten(0, 1), log_targets.flatten(0, 1)
    if targets == "joint":
        return assignment_consistency(log_p, log_targets)
    mean = assignment_consistency(log_p, log_targets.detach())
    return 2 * mean if targets == "sum" else mean


class _LogAgreement(torch.autograd.Function):
    """Log-probability that rows of `p` and of `q` agree in every part: (G, N, K), (G, M, K) -> (N, M).

    It takes one part at a time, and computes it again in the backward pass: N x M numbers in memory instead of G times
    as many, which stay in a CPU's cache. Agreement is clamped from below: pairs that never agree repel no further.
    """

    @staticmethod
    def forward(ctx: Any, p: Tensor, q: Tensor) -> Tensor:
        ctx.save_for_backward(p, q)
        ctx.same = p is q
        total = p.new_zeros(p.shape[1], q.shape[1])
        for ours, theirs in zip(p, q, strict=True):
            total += (ours @ theirs.T).clamp_(min=_least(p)).log_()
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None]:
        p, q = ctx.saved_tensors
        (gradient,) = gradients
        of_q = not ctx.same and ctx.needs_input_grad[1]
        if ctx.same:  # agreement is symmetric, and one product gives the gradient of both sides
            gradient = gradient + gradient.T
        changes_p, changes_q = [], []
        with full_precision(p.device.type):
            for ours, theirs in zip(p, q, strict=True):
                agreement = ours @ theirs.T
                change = (gradient / agreement).masked_fill_(agreement <= _least(p), 0.0)
                changes_p.append(change @ theirs)
                if of_q:
                    changes_q.append(change.T @ ours)
        return torch.stack(changes_p), torch.stack(changes_q) if changes_q else None


def _least(p: Tensor) -> float:
    return torch.finfo(p.dtype).tiny * 2**24  # far enough above the smallest number for gradients that fp16 scales


def chance_agreement(log_p: Tensor, log_others: Tensor | None = None) -> Tensor:
    """Log-probability that a view chooses the same prototypes as a view of another image: (V, B, G, K) -> ().

    They must agree in every part. The other images are the negatives: all others in the batch of all processes. Added
    to Eq. 4, this makes agreement relative to chance. When all images have one assignment, the two terms cancel, so
    collapse gains nothing.

    `log_others` (U, B, G, K) are assignments of the same images to compare with instead, such as a teacher's or the
    mean over an image's views.
    """
    with full_precision(log_p.device.type):
        p = log_p.exp().transpose(0, 1)  # (B, V, G, K)
        q = p if log_others is None else log_others.exp().transpose(0, 1)
        everything = distributed.gather(q)
        count, views = everything.shape[:2]
        if count == 1:  # no other image
            return log_p.new_zeros(())
        ours = _by_part(p)
        theirs = ours if everything is p else _by_part(everything)
        agreement: Tensor = _LogAgreement.apply(ours, theirs)  # (BV, NU)
        images = torch.arange(count, device=p.device).repeat_interleave(views)
        own = distributed.own_rows(len(p), p.device).repeat_interleave(p.shape[1])
        others = agreement.masked_fill(own[:, None] == images, float("-inf"))
        return (others.logsumexp(dim=1) - math.log((count - 1) * views)).mean()


def _by_part(p: Tensor) -> Tensor:
    """(B, V, G, K) -> (G, BV, K)"""
    return p.flatten(0, 1).transpose(0, 1).contiguous()


def unit(embeddings: Tensor) -> Tensor:
    """Rows of length one, in float32 whatever the precision of training."""
    return F.normalize(embeddings.float() if embeddings.dtype.itemsize < 4 else embeddings, dim=-1)


def nt_xent(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Each view picks the other view of its image out of all other views of the batch (SimCLR, Eq. 1).

    (B, D) x 2 -> (). The batch is that of all processes: 2N - 2 negatives.
    """
    with full_precision(first.device.type):
        first, second = unit(first), unit(second)
        everything = torch.cat([distributed.gather(first), distributed.gather(second)])  # (2N, D)
        logits = torch.cat([first, second]) @ everything.T / temperature  # (2B, 2N)
        own = distributed.own_rows(len(first), first.device)
        half = len(everything) // 2
        itself, other = torch.cat([own, own + half]), torch.cat([own + half, own])
        return F.cross_entropy(logits.scatter(1, itself[:, None], float("-inf")), other)


def info_nce(queries: Tensor, keys: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """Each query picks its key out of the negatives (MoCo, Eq. 1): (B, D), (B, D), (Q, D) -> ().

    Keys carry no gradient. The negatives must have unit length.
    """
    with full_precision(queries.device.type):
        queries, keys = unit(queries), unit(keys.detach())
        positive = (queries * keys).sum(dim=1, keepdim=True)
        logits = torch.cat([positive, queries @ negatives.T], dim=1) / temperature  # (B, 1 + Q)
        return F.cross_entropy(logits, logits.new_zeros(len(logits), dtype=torch.long))


def regression(predictions: Tensor, targets: Tensor) -> Tensor:
    """Squared distance of unit vectors, 2 - 2 cos (BYOL, Eq. 2): (B, D) x 2 -> (); targets carry no gradient."""
    return (2 - 2 * (unit(predictions) * unit(targets.detach())).sum(dim=1)).mean()


@torch.no_grad()
def sinkhorn(scores: Tensor, epsilon: float, iterations: int, absent: Tensor | None = None) -> Tensor:
    """Codes that share the batch of all processes equally among the prototypes (SwAV, Eq. 3): (B, K) -> (B, K).

    Alternates between equal sums for prototypes and for images. Rows sum to one. Computed in log space: with a sharp
    epsilon whole rows of the exponential would be zero, and the codes 0 / 0. Rows that are `absent` (B,) count for
    nothing: their weight is exp(ABSENT), which is zero. Only the device knows which they are. Works in place, because
    with a queue and many prototypes most of the time goes into allocating memory.
    """
    with full_precision(scores.device.type):
        log_codes = (scores.float() if scores.dtype.itemsize < 4 else scores) / epsilon
        for _ in range(iterations):
            if absent is not None:
                log_codes += ABSENT * absent[:, None]
            highest = log_codes.amax(dim=0)
            if distributed.world_size() > 1:
                dist.all_reduce(highest, op=dist.ReduceOp.MAX)
            sums = distributed.sum_over_processes((log_codes - highest).exp_().sum(dim=0))
            log_codes -= highest + sums.log()
            log_codes -= log_codes.logsumexp(dim=1, keepdim=True)
        return log_codes.exp_()


def cross_entropy_of_codes(codes: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of a view's assignment given the code of another view (SwAV, Eq. 2): (B, K) x 2 -> ()."""
    return -(codes * log_assignments(scores / temperature)).sum(dim=1).mean()


def concentration(
    distances: Tensor, assignments: Tensor, clusters: int, temperature: float, smoothing: float = 10.0
) -> Tensor:
    """How tightly each cluster lies around its centroid, phi (PCL, Eq. 12): (N,) squared distances -> (clusters,).

    Mean distance over log(size + smoothing). As in the authors' code, clusters of one image take the largest value,
    values are clamped to their 10th and 90th percentiles, and the mean over clusters is the temperature.
    """
    sizes = assignments.bincount(minlength=clusters)
    sums = distances.new_zeros(clusters).index_add_(0, assignments, distances.clamp(min=0).sqrt())
    density = sums / sizes.clamp(min=1) / (sizes + smoothing).log()
    single = sizes <= 1
    density = torch.where(single, density.masked_fill(single, 0).max(), density)
    low, high = density.quantile(torch.tensor([0.1, 0.9], device=density.device, dtype=density.dtype))
    density = density.clamp(low, high)
    mean = density.mean()
    relative = torch.where(mean > 0, density / mean, 1.0)
    return temperature * relative.clamp(min=0.01)  # identical images lie at distance 0, and no scale may be 0


def proto_nce(
    embeddings: Tensor, centroids: Tensor, concentrations: Tensor, assignments: Tensor, others: Tensor | None = None
) -> Tensor:
    """Each image picks its cluster's centroid, each cluster on a scale of its own (PCL, Eq. 11, one clustering).

    (B, D), (K, D), (K,), (B,) -> (). `others` (r,) are the clusters that serve as negatives; all if None.
    """
    with full_precision(embeddings.device.type):
        logits = unit(embeddings) @ centroids.T / concentrations  # (B, K)
        own = logits.gather(1, assignments[:, None])
        if others is not None:
            logits = logits[:, others].masked_fill(others == assignments[:, None], float("-inf"))
            logits = torch.cat([logits, own], dim=1)
        return (logits.logsumexp(dim=1) - own[:, 0]).mean()
