"""Resampling against torchvision's operations with the same parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as F
from PIL import Image
from torch.nn.functional import interpolate

from carl.views.resample import crop_taps, resample

LEVEL = 1 / 255  # one step of an 8-bit pixel
BOXES = [(0, 0, 32, 40), (3, 5, 20, 9), (31, 39, 1, 1), (0, 7, 2, 33), (10, 0, 22, 40), (5, 5, 16, 16)]


def noise(*shape: int) -> torch.Tensor:
    """The hardest image to resample: neighbours have nothing in common."""
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def resized_crops(images: torch.Tensor, boxes: list[tuple[int, ...]], flips: list[bool], size: int) -> torch.Tensor:
    top, left, height, width = torch.tensor(boxes).T
    mirrored = torch.tensor(flips)
    rows = crop_taps(top, height, images.shape[1], size)
    columns = crop_taps(left, width, images.shape[2], size, mirrored)
    return resample(images, torch.arange(len(images)), rows, columns)


@pytest.mark.parametrize("size", [1, 7, 16, 32, 64])
@pytest.mark.parametrize("flipped", [False, True])
def test_resized_crop_equals_the_antialiased_tensor_version_of_torchvision(size, flipped):
    images = noise(len(BOXES), 32, 40, 3)
    ours = resized_crops(images, BOXES, [flipped] * len(BOXES), size)
    for image, box, view in zip(images, BOXES, ours, strict=True):
        theirs = F.resized_crop(image.permute(2, 0, 1) / 255, *box, size=[size, size], antialias=True)
        theirs = F.hflip(theirs) if flipped else theirs
        assert (view - theirs).abs().max() < 0.01 * LEVEL


@pytest.mark.parametrize("size", [16, 32, 64])
def test_resized_crop_is_within_rounding_of_the_pil_version_of_torchvision(size):
    images = noise(len(BOXES), 32, 40, 3)
    ours = resized_crops(images, BOXES, [False] * len(BOXES), size)
    for image, box, view in zip(images, BOXES, ours, strict=True):
        theirs = F.resized_crop(Image.fromarray(image.numpy()), *box, size=[size, size])
        theirs = torch.from_numpy(np.array(theirs)).permute(2, 0, 1) / 255
        assert (view - theirs).abs().max() < 1.5 * LEVEL


def test_flips_are_per_sample():
    images = noise(1, 32, 32, 3).expand(2, -1, -1, -1)
    upright, mirrored = resized_crops(images, [(4, 4, 16, 16)] * 2, [False, True], 32)
    torch.testing.assert_close(mirrored, upright.flip(2))


def test_the_whole_image_at_its_own_size_is_itself():
    images = noise(2, 24, 24, 5)
    views = resized_crops(images, [(0, 0, 24, 24)] * 2, [False] * 2, 24)
    torch.testing.assert_close(views, images.permute(0, 3, 1, 2) / 255)


def test_any_images_of_a_batch_can_be_resampled_in_any_order():
    images = noise(5, 20, 20, 3)
    one = resized_crops(images, [(2, 3, 10, 12)] * 5, [False] * 5, 16)
    places = torch.tensor([4, 0, 4])
    top, left, height, width = torch.tensor([(2, 3, 10, 12)] * 3).T
    some = resample(images, places, crop_taps(top, height, 20, 16), crop_taps(left, width, 20, 16))
    torch.testing.assert_close(some, one[places])


@pytest.mark.parametrize("size", [3, 8, 16, 24, 40])
def test_taps_are_the_response_of_interpolate_to_unit_impulses(size):
    starts, extents = (0, 3, 23, 0), (24, 17, 1, 13)
    taps = crop_taps(torch.tensor(starts), torch.tensor(extents), 24, size)
    dense = torch.zeros(4, size, 24).scatter_add_(2, taps.pixels.permute(1, 2, 0), taps.weights.permute(1, 2, 0))
    for start, extent, weights in zip(starts, extents, dense, strict=True):
        impulses = torch.eye(extent)[:, None, None, :].expand(extent, 1, 1, extent)
        response = interpolate(impulses, size=(1, size), mode="bilinear", antialias=True)[:, 0, 0]  # (extent, size)
        torch.testing.assert_close(weights[:, start : start + extent], response.T)
        assert not weights[:, :start].any()
        assert not weights[:, start + extent :].any()
