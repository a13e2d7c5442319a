"""Encoders: timm models whose pooled features are the representation."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from carl.config import ModelConfig
from carl.errors import UserError
from carl.models.tiny_maps import adapt_to_tiny_maps
from carl.models.torch_files import read_torch_file

CLASSIFIERS = ("fc.", "head.", "classifier.", "head.fc.")  # layers above the representation, by timm's names
WRAPPERS = ("module.", "encoder.", "backbone.", "model.")  # prefixes that other tools add


def build_encoder(model: ModelConfig, channels: int, image_size: int) -> nn.Module:
    """A timm model without its classifier: images (B, C, S, S) -> pooled features (B, D).

    `zero_init_last` is off, as in torchvision: the residual branches of a ResNet start at their full strength.
    """
    encoder = _create(model, channels, image_size)
    if model.stem == "small":
        use_small_stem(encoder, channels, model.backbone)
    if model.init not in (None, "timm"):
        load_weights(encoder, Path(str(model.init)))
    return adapt_to_tiny_maps(encoder) if model.tiny_maps else encoder


def _create(model: ModelConfig, channels: int, image_size: int) -> nn.Module:
    base = model.backbone.split(".")[0]
    if not timm.is_model(base):
        raise UserError(f"unknown backbone {model.backbone!r} in timm{_nearest_model(base)}")
    options: dict[str, Any] = {"num_classes": 0, "in_chans": channels}
    if timm.model_entrypoint(base).__module__ == "timm.models.resnet":
        options["zero_init_last"] = False
    known = timm.get_pretrained_cfg(base)
    if known is not None and known.fixed_input_size:
        options["img_size"] = image_size  # transformers with position embeddings are built for one size
    try:
        encoder: nn.Module = timm.create_model(model.backbone, pretrained=model.init == "timm", **options)
    except (OSError, RuntimeError, ValueError, AssertionError, TypeError) as error:
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        remedy = (
            "check the network, or give --init a file"
            if model.init == "timm"
            else "choose another backbone or --image-size"
        )
        raise UserError(f"timm cannot make {model.backbone!r} for {image_size} px: {cause}; {remedy}") from None
    return encoder


def _nearest_model(name: str) -> str:
    close = difflib.get_close_matches(name, timm.list_models(), n=1)
    return f"; did you mean {close[0]!r}?" if close else "; timm.list_models() in Python lists them"


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
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"the backbone cannot read images of {image_size} px: {reason}; "
            "choose a larger --image-size or another --backbone"
        ) from None
    encoder.train(was_training)
    return int(features.shape[1])


def read_weights(path: Path) -> dict[str, Tensor]:
    """A state dict from a .safetensors or torch file; nothing in the file is ever executed."""
    if not path.is_file():
        raise UserError(f"--init {str(path)!r} is not a file; give a .safetensors or .pth file, or `timm`")
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        loaded = read_torch_file(path)
    except Exception as error:  # each format has errors of its own; all mean that the file is not usable
        reason = (str(error).splitlines() or ["unreadable"])[0]
        raise UserError(f"{path} holds no weights: {reason}; give a .safetensors file or a state dict") from None
    for key in ("state_dict", "model", "teacher"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(isinstance(key, str) and _is_dense(loaded[key]) for key in loaded):
        raise UserError(f"{path} is not a state dict of tensors; save model.state_dict()")
    return loaded


def _is_dense(value: object) -> bool:
    """Whether a value is an ordinary tensor: not sparse, not quantised, and not just a shape without numbers."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return False
    return not value.is_quantized and value.device.type == "cpu"


def load_weights(encoder: nn.Module, path: Path) -> None:
    """Load a file into the encoder. It must have every key of the encoder, and may have a classifier besides."""
    wanted = encoder.state_dict()
    found = read_weights(path)
    for prefix in WRAPPERS:
        inner = {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)}
        if len(inner.keys() & wanted.keys()) > len(found.keys() & wanted.keys()):
            found = inner
    found = {key: value for key, value in found.items() if key in wanted or not key.startswith(CLASSIFIERS)}
    missing, over = wanted.keys() - found.keys(), found.keys() - wanted.keys()
    if missing or over:
        key, what = (min(missing), "is missing") if missing else (min(over), "has no place")
        raise UserError(
            f"{path} does not fit the encoder: {key!r} {what} ({len(missing)} missing, {len(over)} over); "
            "choose the --backbone and --stem that it was trained with"
        )
    for key, value in found.items():
        if value.shape != wanted[key].shape or value.is_complex():
            raise UserError(
                f"{path} does not fit the encoder: {key!r} is {tuple(value.shape)} {value.dtype}, not "
                f"{tuple(wanted[key].shape)} {wanted[key].dtype}; choose the --backbone, --stem and channels that it "
                "was trained with"
            )
    encoder.load_state_dict(found)
    bad = next((key for key, value in encoder.state_dict().items() if not bool(value.isfinite().all())), None)
    if bad is not None:
        raise UserError(f"{path} holds values that are not finite (in {bad}); give a file without NaN and infinity")
