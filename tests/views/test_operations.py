"""View operations against torchvision's tensor functions with the same parameters."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
import torchvision.transforms.functional as F

from carl.views.operations import OPERATIONS, option_owners
from carl.views.operations.blur import gaussian_blur, gaussian_kernels, reflection
from carl.views.operations.greyscale import greyscale
from carl.views.operations.jitter import (
    BRIGHTNESS,
    CONTRAST,
    SATURATION,
    blend_order,
    blend_step_,
    jitter_,
    shift_hue_,
)
from carl.views.operations.solarise import solarise

LEVEL = 1 / 255


def pictures(count: int) -> torch.Tensor:
    """Noise, with pure colours, greys, black and white on top, where hue formulas divide by zero."""
    images = torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 0.5, 1.0])] * 3)  # (27, 3)
    images[:, :, 0, :] = corners[:16].T
    images[:, :, 1, :11] = corners[16:].T
    return images


def assert_close_in_levels(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    difference = (ours - theirs).abs()
    assert difference.max() < 2 * LEVEL
    assert difference.mean() < 0.2 * LEVEL


@pytest.mark.parametrize(
    ("operation", "reference"),
    [(BRIGHTNESS, F.adjust_brightness), (CONTRAST, F.adjust_contrast), (SATURATION, F.adjust_saturation)],
)
def test_blend_steps_equal_torchvision(operation, reference):
    images, factors = pictures(5), [0.0, 0.2, 1.0, 1.3, 1.8]
    ours = blend_step_(images.clone(), torch.full((5,), operation), torch.tensor(factors))
    for view, image, factor in zip(ours, images, factors, strict=True):
        assert_close_in_levels(view, reference(image, factor))


def test_samples_of_one_batch_take_different_blends():
    images = pictures(3)
    ours = blend_step_(images.clone(), torch.tensor([SATURATION, BRIGHTNESS, CONTRAST]), torch.full((3,), 0.6))
    references = (F.adjust_saturation, F.adjust_brightness, F.adjust_contrast)
    for view, image, reference in zip(ours, images, references, strict=True):
        assert_close_in_levels(view, reference(image, 0.6))


@pytest.mark.parametrize("shift", [-0.5, -0.2, -0.01, 0.0, 0.1, 0.37, 0.5])
def test_hue_equals_torchvision(shift):
    images = pictures(2)
    assert_close_in_levels(shift_hue_(images.clone(), torch.full((2,), shift)), F.adjust_hue(images, shift))


def test_a_hue_shift_of_zero_changes_nothing():
    images = pictures(2)
    torch.testing.assert_close(shift_hue_(images.clone(), torch.zeros(2)), images, atol=1e-6, rtol=0)


def test_hue_keeps_greys_exactly_grey():
    images = torch.linspace(0, 1, 64).view(1, 1, 8, 8).repeat(1, 3, 1, 1)
    assert torch.equal(shift_hue_(images.clone(), torch.tensor([0.3])), images)


def test_greyscale_equals_torchvision():
    images = pictures(2)
    assert_close_in_levels(greyscale(images), F.rgb_to_grayscale(images, num_output_channels=3))


@pytest.mark.parametrize("threshold", [0.0, 0.5, 128 / 255, 0.9])
def test_solarise_equals_torchvision(threshold):
    images = pictures(2)
    assert_close_in_levels(solarise(images, threshold), F.solarize(images, threshold))


def test_the_six_codes_are_the_six_orders():
    orders = torch.stack(blend_order(torch.arange(6)), dim=1)
    assert sorted(map(tuple, orders.tolist())) == sorted(permutations(range(3)))


@pytest.mark.parametrize("code", range(6))
@pytest.mark.parametrize("slot", range(4))
def test_jitter_in_every_order_equals_torchvision_in_that_order(code, slot):
    image = pictures(1)
    factors = (0.5, 1.6, 0.3)
    operations = [int(step) for step in blend_order(torch.tensor(code))]
    blends = [(torch.tensor([step]), torch.tensor([factors[step]])) for step in operations]
    ours = jitter_(image.clone(), blends, torch.tensor([0.15]), torch.tensor([slot]))

    adjust = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation)
    theirs = image
    for step, operation in enumerate((*operations, None)):
        if step == slot:
            theirs = F.adjust_hue(theirs, 0.15)
        if operation is not None:
            theirs = adjust[operation](theirs, factors[operation])
    assert_close_in_levels(ours, theirs)


@pytest.mark.parametrize(("size", "taps"), [(16, 3), (32, 3), (96, 9), (200, 21), (224, 23), (4, 7)])
def test_blur_equals_torchvision_for_every_sigma(size, taps):
    images = torch.rand(4, 3, size, size, generator=torch.Generator().manual_seed(0))
    sigma = torch.tensor([0.1, 0.5, 1.0, 2.0])
    reads = reflection(taps, size, torch.device("cpu"))
    ours = gaussian_blur(images, sigma, reads, out=torch.empty_like(images))
    for image, s, view in zip(images, sigma, ours, strict=True):
        theirs = F.gaussian_blur(image, [taps, taps], [float(s), float(s)])
        assert (view - theirs).abs().max() < 0.01 * LEVEL


def test_blur_weights_of_each_pixel_sum_to_one():
    kernels = gaussian_kernels(torch.tensor([0.3, 5.0]), 9)
    sums = (kernels @ reflection(9, 12, torch.device("cpu"))).view(2, 12, 12).sum(dim=2)
    torch.testing.assert_close(sums, torch.ones_like(sums))


def test_blur_in_place_gives_the_same_bits():
    images = pictures(4)
    sigma, reads = torch.tensor([0.1, 0.5, 1.0, 2.0]), reflection(5, 16, torch.device("cpu"))
    apart = gaussian_blur(images, sigma, reads, out=torch.empty_like(images))
    assert torch.equal(gaussian_blur(images, sigma, reads, out=images), apart)


def test_no_two_operations_share_an_option_or_a_random_number():
    options = [option for kind in OPERATIONS.values() for option in kind.model_fields]
    assert sorted(options) == sorted(option_owners())
    places = [place for kind in OPERATIONS.values() for place in kind.places]
    assert len(places) == len(set(places))


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_option_says_what_it_is(name):
    assert all(field.description for field in OPERATIONS[name].model_fields.values())
