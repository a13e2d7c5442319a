"""Slow copies of a network, and queues of their outputs."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from carl import distributed


def momentum_copy(module: nn.Module) -> nn.Module:
    """A copy without gradients; `average_into` moves it towards the original."""
    twin = copy.deepcopy(module)
    return twin.requires_grad_(False)


@torch.no_grad()
def average_into(target: nn.Module, source: nn.Module, momentum: float) -> None:
    """target <- momentum * target + (1 - momentum) * source, for parameters.

    Batch norm statistics are not averaged: the copy has its own, from its own forward passes.
    """
    torch._foreach_lerp_(list(target.parameters()), [p.detach() for p in source.parameters()], 1 - momentum)


@torch.no_grad()
def distance(target: nn.Module, source: nn.Module) -> Tensor:
    """Relative distance of the parameters: the norm of the difference over that of the source."""
    theirs = [p.detach() for p in source.parameters()]
    gaps = torch._foreach_sub(list(target.parameters()), theirs)
    return _norm(gaps) / _norm(theirs)


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    norms: list[Tensor] = list(torch._foreach_norm(list(tensors)))
    return torch.stack(norms).square().sum().sqrt()


@torch.no_grad()
def forward_shuffled(module: nn.Module, images: Tensor, groups: int) -> Tensor:
    """Outputs in order, each normalised within a random group of the batch (He et al. 2020, section 3.3).

    A query that is normalised together with the images of its key could know the key by the statistics they
    share. The authors shuffle over GPUs; here the batch of all processes is dealt anew, and each process makes
    `groups` / processes groups of its share, rounded down, at least one. With `groups` 1 nothing is dealt.
    """
    count, ranks = len(images), distributed.world_size()
    groups = max(1, min(groups, count * ranks // 2))  # batch norm needs two images
    if groups == 1:
        outputs: Tensor = module(images)
        return outputs
    order = distributed.from_main(torch.randperm(count * ranks, device=images.device)).view(ranks, count)
    dealt = distributed.gather(images)[order[distributed.rank()]]
    mixed = distributed.gather(_forward_in_groups(module, dealt, max(1, groups // ranks)))
    places = order.T.flatten().argsort()
    return mixed[places[distributed.own_rows(count, images.device)]]


def _forward_in_groups(module: nn.Module, images: Tensor, groups: int) -> Tensor:
    """Outputs of each group by itself; running statistics move by the mean over the groups, as after one batch."""
    parts = images.tensor_split(groups)  # sizes differ by one at most, where `chunk` may leave a single image
    norms = [child for child in module.modules() if isinstance(child, _BatchNorm) and child.momentum]
    usual = [float(norm.momentum or 0) for norm in norms]
    outputs = []
    for later, part in zip(reversed(range(len(parts))), parts, strict=True):
        for norm, momentum in zip(norms, usual, strict=True):
            norm.momentum = momentum / (len(parts) - later * momentum)  # in the end each group weighs the same
        outputs.append(module(part))
    for norm, momentum in zip(norms, usual, strict=True):
        norm.momentum = momentum
    return torch.cat(outputs)


class Queue(nn.Module):
    """The last `size` embeddings of unit length, the oldest overwritten first; random directions at the start."""

    rows: Tensor  # (size, D)
    seen: Tensor  # embeddings ever put in

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("rows", F.normalize(torch.randn(size, dim), dim=1))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def push(self, embeddings: Tensor) -> None:
        """Put a batch in. The position is computed on the queue's device, so the host does not wait."""
        newest = embeddings[-len(self.rows) :].to(self.rows.dtype)
        places = (self.seen + torch.arange(len(newest), device=newest.device)) % len(self.rows)
        self.rows.index_copy_(0, places, newest)
        self.seen += len(newest)

    @property
    def filled(self) -> Tensor:
        """The fraction of the queue that holds embeddings, not the random start."""
        return (self.seen / len(self.rows)).clamp(max=1.0)


class KeyEncoder(nn.Module):
    """A slow copy of encoder and head, and a queue of its keys: what MoCo and PCL contrast with."""

    def __init__(self, encoder: nn.Module, head: nn.Module, dim: int, queue: int, momentum: float, groups: int) -> None:
        super().__init__()
        self.momentum, self.groups = momentum, groups
        self.network = momentum_copy(nn.Sequential(OrderedDict(encoder=encoder, head=head)))
        self.queue = Queue(queue, dim)
        self._newest: Tensor | None = None  # keys of the batch, until the step is done

    def forward(self, images: Tensor) -> Tensor:
        """Keys of images in training, normalised in shuffled groups; no gradient."""
        return forward_shuffled(self.network, images, self.groups)

    def remember(self, keys: Tensor) -> None:
        """Keep unit keys for the queue. They enter it after the step, because the loss needs the queue unchanged."""
        self._newest = distributed.gather(keys.detach())

    def follow(self, encoder: nn.Module, head: nn.Module) -> None:
        """After a step: take the new keys in, and move towards the trained network."""
        assert self._newest is not None, "remember keys before following"
        self.queue.push(self._newest)
        average_into(self.network.get_submodule("encoder"), encoder, self.momentum)
        average_into(self.network.get_submodule("head"), head, self.momentum)

    def figures(self, encoder: nn.Module) -> dict[str, float]:
        """How much of the queue is filled, the age of its oldest key in steps, and how far the slow copy lags."""
        size, newest = len(self.queue.rows), 0 if self._newest is None else len(self._newest)
        return {
            "queue_filled": float(self.queue.filled),
            "queue_age": min(float(self.queue.seen), size) / max(newest, 1),
            "target_distance": float(distance(self.network.get_submodule("encoder"), encoder)),
        }
