"""Encoders: timm models whose pooled features are the representation."""

from __future__ import annotations

from typing import Any

import timm
import torch
from torch import nn

from carl.config import ModelConfig
from carl.errors import UserError, first_line
from carl.models.architectures import known_architecture
from carl.models.kept_parts import keep_layers, keep_statistics
from carl.models.pretrained import find_weights
from carl.models.state_dicts import put_into
from carl.models.tiny_maps import adapt_to_tiny_maps


def build_encoder(model: ModelConfig, channels: int, image_size: int) -> nn.Module:
    """A timm model without its classifier: images (B, C, S, S) -> pooled features (B, D).

    `zero_init_last` is off, as in torchvision: the residual branches of a ResNet start at their full strength.
    """
    encoder = _create(model, channels, image_size)
    if model.stem == "small":
        use_small_stem(encoder, channels, model.backbone)
    if model.init is not None:
        weights = find_weights(model.init, model.backbone)
        put_into(encoder, weights.state(channels, image_size), weights.name)
    return adapt_to_tiny_maps(encoder) if model.tiny_maps else encoder


def build_learning_encoder(model: ModelConfig, channels: int, image_size: int) -> nn.Module:
    """The encoder for training: it keeps the parts that the configuration says."""
    encoder = build_encoder(model, channels, image_size)
    keep_layers(encoder, model.keep_layers)
    if model.keep_statistics:
        keep_statistics(encoder)
    return encoder


def _create(model: ModelConfig, channels: int, image_size: int) -> nn.Module:
    base = known_architecture(model.backbone)
    options: dict[str, Any] = {"num_classes": 0, "in_chans": channels}
    if timm.model_entrypoint(base).__module__ == "timm.models.resnet":
        options["zero_init_last"] = False
    known = timm.get_pretrained_cfg(base)
    if known is not None and known.fixed_input_size:
        options["img_size"] = image_size  # transformers with position embeddings are built for one size
    try:
        encoder: nn.Module = timm.create_model(model.backbone, pretrained=False, **options)
    except (OSError, RuntimeError, ValueError, AssertionError, TypeError) as error:
        cause = first_line(error)
        raise UserError(
            f"timm cannot make {model.backbone!r} for {image_size} px: {cause}; choose another backbone or --image-size"
        ) from None
    return encoder


def use_small_stem(encoder: nn.Module, channels: int, name: str) -> None:
    """Replace a ResNet's stem by a 3x3 convolution of stride 1 without max-pool (SimCLR, appendix B.9)."""
    first = getattr(encoder, "conv1", None)
    if not isinstance(first, nn.Conv2d) or not hasattr(encoder, "maxpool"):
        raise UserError(f"--stem small is for ResNets, not {name!r}; leave --stem at imagenet")
    encoder.conv1 = nn.Conv2d(channels, first.out_channels, 3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(encoder.conv1.weight, mode="fan_out", nonlinearity="relu")
    encoder.maxpool = nn.Identity()


def feature_size(encoder: nn.Module, channels: int, image_size: int) -> int:
    """Length of the representation. It is measured, because timm's attributes do not always give it."""
    was_training = encoder.training
    encoder.eval()
    try:
        with torch.no_grad():
            features = encoder(torch.zeros(1, channels, image_size, image_size))
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = first_line(error)
        raise UserError(
            f"the backbone cannot read images of {image_size} px: {reason}; "
            "choose a larger --image-size or another --backbone"
        ) from None
    encoder.train(was_training)
    return int(features.shape[1])
