"""Batch norm over the batch of all processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from timm.layers.norm_act import BatchNormAct2d, convert_sync_batchnorm
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from carl import distributed
from carl.models.kept_parts import KeptStatistics
from carl.models.momentum import KeyEncoder

KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, BatchNormAct2d)


class SharedBatchNorm(_BatchNorm):
    """Batch norm over the batch of all processes, on any device; torch's own works on CUDA only.

    Each process gives its mean and variance of C channels and its number of values, one message forward and one
    backward. The gradient is exact, also where one process has more images than another, or none. Parameters, buffers
    and state dict are those of the class it stands for.
    """

    def forward(self, input: Tensor) -> Tensor:
        output = self._normalised(input) if self.training else self._by_running_statistics(input)
        for after in ("drop", "act"):  # what timm's BatchNormAct2d does next
            if after in self._modules:
                output = self.get_submodule(after)(output)
        return output

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept any number of dimensions after the channels."""

    def _by_running_statistics(self, input: Tensor) -> Tensor:
        return super().forward(input)

    def _normalised(self, input: Tensor) -> Tensor:
        values = input.float() if input.dtype.itemsize < 4 else input
        over = [0, *range(2, values.ndim)]
        channels = [1, -1] + [1] * (values.ndim - 2)
        count = values.numel() // values.shape[1]
        means = values.sum(over) / max(count, 1)
        variances = (values - means.view(channels)).square().sum(over) / max(count, 1)
        own = torch.cat([means, variances, means.new_tensor([count])])
        everyone: list[Tensor] = list(distributed.gather(own[None]).split([len(means), len(means), 1], dim=1))
        means, variances, counts = everyone  # rows of the processes
        total = counts.detach().sum()
        shares = counts.detach() / total
        mean = (shares * means).sum(0)
        variance = (shares * (variances + (means - mean).square())).sum(0)  # within and between the processes
        if self.track_running_stats:
            self._follow(mean.detach(), variance.detach(), total)
        scale = (variance + self.eps).rsqrt()
        if self.weight is not None:
            scale = scale * self.weight
        output = (values - mean.view(channels)) * scale.view(channels)
        if self.bias is not None:
            output = output + self.bias.view(channels)
        return output.to(input.dtype)

    def _follow(self, mean: Tensor, variance: Tensor, total: Tensor) -> None:
        """Update the running statistics, with the unbiased variance as torch does."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_((variance * (total / (total - 1))).to(self.running_var.dtype), momentum)


def share_batch_norm(module: nn.Module, device: torch.device) -> None:
    """Make the batch norms of a module normalise over the batch of all processes, in place.

    Key encoders that normalise in shuffled groups keep their own: that the groups differ is their point.
    """
    if isinstance(module, KeyEncoder) and module.groups > 1:
        return
    for name, child in module.named_children():
        if type(child) not in KINDS:
            share_batch_norm(child, device)
        elif device.type == "cuda":
            setattr(module, name, convert_sync_batchnorm(child))
        else:
            child.__class__ = SharedBatchNorm


@contextmanager
def by_batch_statistics(module: nn.Module) -> Iterator[None]:
    """Inside, batch norms in eval mode use the statistics of their batch, as in training, but keep no running ones.

    So a model is seen as training sees it while the running statistics are not yet those of its images. Norms that keep
    their statistics in training keep them here too.
    """
    norms = [p for p in module.modules() if isinstance(p, _BatchNorm) and not isinstance(p, KeptStatistics)]
    kept = [(norm.running_mean, norm.running_var) for norm in norms]
    try:
        for norm in norms:
            norm.running_mean = norm.running_var = None
        yield
    finally:
        for norm, (mean, variance) in zip(norms, kept, strict=True):
            norm.running_mean, norm.running_var = mean, variance


def average_running_statistics(module: nn.Module) -> None:
    """Give all processes the mean of their running statistics.

    These move linearly, so it does not matter when or how often they are averaged.
    """
    norms = [child for child in module.modules() if isinstance(child, _BatchNorm)]
    buffers = [buffer for norm in norms for buffer in (norm.running_mean, norm.running_var) if buffer is not None]
    distributed.average_(buffers)
