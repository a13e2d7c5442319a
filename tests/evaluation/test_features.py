"""Images on their way to a frozen encoder."""

from __future__ import annotations

import timm
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from carl.evaluation.features import in_fastest_order


def test_the_order_in_memory_changes_no_value():
    images = torch.arange(2 * 3 * 4 * 4.0).view(2, 3, 4, 4)
    ordered = in_fastest_order(images)
    assert torch.equal(ordered, images)
    assert ordered.is_contiguous(memory_format=torch.channels_last)


def test_other_devices_keep_the_order_that_images_have():
    with FakeTensorMode():
        images = torch.empty(2, 3, 4, 4, device="cuda")
        assert in_fastest_order(images) is images


def test_features_of_a_depthwise_encoder_agree_in_both_orders():
    torch.manual_seed(0)
    encoder = timm.create_model("tf_efficientnet_lite0", num_classes=0).eval().double()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with torch.inference_mode():
        torch.testing.assert_close(encoder(in_fastest_order(images)), encoder(images), rtol=1e-9, atol=1e-12)
