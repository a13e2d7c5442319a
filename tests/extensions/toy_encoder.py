"""A kind of ENCODER: `toy:SEED`, the random weights of a tiny ResNet with this seed."""

from __future__ import annotations

import timm
import torch
from torch import Tensor

from carl.framing import Framing
from carl.models.pretrained.weights import Kind, PretrainedWeights, WantedInput


def recognises(given: str) -> bool:
    return given.startswith("toy:")


def find(given: str, backbone: str | None) -> PretrainedWeights:
    def state(channels: int, image_size: int) -> dict[str, Tensor]:
        torch.manual_seed(int(given.removeprefix("toy:")))
        return timm.create_model("test_resnet", in_chans=channels, num_classes=0).state_dict()

    return PretrainedWeights(
        name=given,
        backbone="test_resnet",
        stem="imagenet",
        wanted=WantedInput(Framing(32, 32), image_size=32, mean=(0.5,) * 3, std=(0.25,) * 3),
        origin="a toy",
        licence="none",
        state=state,
    )


TOY_ENCODER = Kind(recognises, find)
