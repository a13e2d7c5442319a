"""What an encoder that exists keeps while it is adapted: the statistics of its batch norms, and its first layers."""

from __future__ import annotations

from typing import Any

from timm.layers.norm_act import BatchNormAct2d
from timm.models import group_parameters
from torch import nn

from carl.errors import UserError


class KeptStatistics(nn.Module):
    """A batch norm that normalises by its running statistics in training too, and leaves them as they are.

    On a few thousand images of one kind, statistics computed anew cost ImageNet's weights more than ten points of kNN.
    Scale and shift still learn. `share_batch_norm` and `by_batch_statistics` pass it by.
    """

    def train(self, mode: bool = True) -> Any:
        return super().train(False)


class KeptBatchNorm1d(KeptStatistics, nn.BatchNorm1d):
    pass


class KeptBatchNorm2d(KeptStatistics, nn.BatchNorm2d):
    pass


class KeptBatchNorm3d(KeptStatistics, nn.BatchNorm3d):
    pass


class KeptBatchNormAct2d(KeptStatistics, BatchNormAct2d):
    pass


KEPT: dict[type[nn.Module], type[KeptStatistics]] = {
    nn.BatchNorm1d: KeptBatchNorm1d,
    nn.BatchNorm2d: KeptBatchNorm2d,
    nn.BatchNorm3d: KeptBatchNorm3d,
    BatchNormAct2d: KeptBatchNormAct2d,
}


def keep_statistics(module: nn.Module) -> None:
    """Make the batch norms of a module keep their statistics, in place. Parameters, buffers and names stay."""
    for part in module.modules():
        kept = KEPT.get(type(part))
        if kept is not None:
            part.__class__ = kept
            part.training = False


def layers_of(encoder: nn.Module) -> list[list[nn.Parameter]]:
    """The parameters of each layer (a stage of a convolutional network, a block of a transformer), as timm counts."""
    matcher = getattr(encoder, "group_matcher", None)
    if matcher is None:
        raise UserError("timm does not say which layers this backbone has; set model.keep_layers=0")
    places: dict[str, int] = group_parameters(encoder, matcher(coarse=True), reverse=True)
    found: dict[int, list[nn.Parameter]] = {}
    for name, parameter in encoder.named_parameters():
        found.setdefault(places[name], []).append(parameter)
    return [found[place] for place in sorted(found)]


def keep_layers(encoder: nn.Module, share: float) -> None:
    """Keep the weights of the first layers, in place. No gradient goes through them, so they cost a forward pass."""
    if not share:
        return
    layers = layers_of(encoder)
    for parameters in layers[: round(share * len(layers))]:
        for parameter in parameters:
            parameter.requires_grad_(False)
