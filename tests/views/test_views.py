"""Views: how parameters are distributed, that they are pure, and that both ways to make them agree with torchvision."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
import torchvision.transforms.functional as F
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.transforms import RandomResizedCrop

from carl.views.recipes import PIPELINES, ViewRecipe, pipeline
from carl.views.views import ViewParameters, Views, make_grouped, make_masked

MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.3)
BUSY = ViewRecipe(24, solarise=0.4)  # every operation occurs


def photos(count: int, side: int = 32, channels: int = 3) -> torch.Tensor:
    return torch.randint(0, 256, (count, side, side, channels), generator=torch.Generator().manual_seed(0)).byte()


def drawn(recipe: ViewRecipe, count: int = 20_000, height: int = 96, width: int = 96) -> ViewParameters:
    return Views([recipe], MEAN, STD, seed=3).draw(torch.arange(count), 0, height, width)[0]


def assert_uniform(values: torch.Tensor, low: float, high: float) -> None:
    """Kolmogorov-Smirnov: the largest gap between the two distribution functions."""
    scaled = ((values - low) / (high - low)).sort().values
    steps = torch.arange(1, len(scaled) + 1) / len(scaled)
    assert (scaled - steps).abs().max() < 1.95 / math.sqrt(len(scaled)) + 1e-3  # p = 0.001


# what is drawn


def test_crop_area_and_log_aspect_are_uniform_where_every_crop_fits():
    crops = drawn(ViewRecipe(32, crop_area=(0.1, 0.5)), height=20_000, width=20_000).crops
    assert_uniform(crops.height * crops.width / 20_000**2, 0.1, 0.5)
    assert_uniform(torch.log(crops.width / crops.height), math.log(3 / 4), math.log(4 / 3))
    assert_uniform(crops.top / (20_000 - crops.height), 0, 1)
    assert_uniform(crops.left / (20_000 - crops.width), 0, 1)


def test_crops_lie_inside_the_image():
    for height, width in ((32, 32), (10, 200), (200, 10), (1, 1)):
        crops = drawn(ViewRecipe(32), 5000, height, width).crops
        assert crops.top.min() >= 0
        assert crops.left.min() >= 0
        assert crops.height.min() >= 1
        assert crops.width.min() >= 1
        assert (crops.top + crops.height).max() <= height
        assert (crops.left + crops.width).max() <= width


@pytest.mark.parametrize(("height", "width"), [(32, 32), (48, 96)])
def test_crops_are_distributed_as_those_of_torchvision(height, width):
    torch.manual_seed(0)
    image = torch.empty(3, height, width)
    theirs = torch.tensor([RandomResizedCrop.get_params(image, (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(5000)])
    ours = drawn(ViewRecipe(32), 5000, height, width).crops
    for column, name in enumerate(("top", "left", "height", "width")):
        a, b = theirs[:, column].double(), getattr(ours, name).double()
        grid = torch.arange(max(height, width) + 1)
        gap = ((a[:, None] <= grid).double().mean(0) - (b[:, None] <= grid).double().mean(0)).abs().max()
        assert gap < 1.95 * math.sqrt(2 / 5000), name


def test_an_image_no_candidate_fits_gets_the_central_crop_of_torchvision():
    image = torch.empty(3, 10, 200)
    top, left, height, width = RandomResizedCrop.get_params(image, (0.9, 1.0), (3 / 4, 4 / 3))
    crops = drawn(ViewRecipe(8, crop_area=(0.9, 1.0)), 50, 10, 200).crops
    assert {
        (int(t), int(x), int(h), int(w))
        for t, x, h, w in zip(crops.top, crops.left, crops.height, crops.width, strict=True)
    } == {(top, left, height, width)}


def test_operations_occur_at_their_rates():
    view = drawn(ViewRecipe(32, flip=0.3, jitter=0.7, grey=0.1, blur=0.6, solarise=0.2))
    assert view.crops.mirrored.float().mean().item() == pytest.approx(0.3, abs=0.015)
    for name, rate in {"jitter": 0.7, "grey": 0.1, "blur": 0.6, "solarise": 0.2}.items():
        assert view.operations[name].chosen.float().mean().item() == pytest.approx(rate, abs=0.015), name


def test_factors_hue_and_sigma_are_uniform_over_their_ranges():
    view = drawn(ViewRecipe(32, jitter=1.0, brightness=0.8, contrast=0.4, saturation=1.5, hue=0.2))
    jitter: Any = view.operations["jitter"]
    for column, (low, high) in enumerate([(0.2, 1.8), (0.6, 1.4), (0.0, 2.5)]):
        assert_uniform(jitter.factors[:, column], low, high)
    assert_uniform(jitter.hue, -0.2, 0.2)
    assert_uniform(view.operations["blur"].sigma, 0.1, 2.0)


def test_samples_that_are_not_jittered_have_parameters_that_change_nothing():
    jitter = drawn(ViewRecipe(32)).operations["jitter"]
    assert (jitter.factors[~jitter.chosen] == 1).all()
    assert (jitter.hue[~jitter.chosen] == 0).all()


def test_the_24_orders_of_the_colour_operations_are_equally_frequent():
    jitter = drawn(ViewRecipe(32), 24_000).operations["jitter"]
    code = jitter.blends[:, 0] * 100 + jitter.blends[:, 1] * 10 + jitter.hue_slot
    _, counts = code.unique(return_counts=True)
    assert len(counts) == 24
    assert ((counts - 1000) ** 2 / 1000).sum() < 50  # chi squared, 23 degrees of freedom: p = 0.001


def test_draws_of_different_operations_are_independent():
    view = drawn(BUSY)
    columns = [view.crops.mirrored, view.crops.top, view.operations["blur"].sigma, view.operations["jitter"].hue_slot]
    columns += [operation.chosen for operation in view.operations.values()]
    correlations = torch.corrcoef(torch.stack([column.float() for column in columns])) - torch.eye(len(columns))
    assert correlations.abs().max() < 0.04


# purity


def test_parameters_of_a_sample_are_the_same_bits_in_any_batch():
    views = Views(pipeline("byol", 32), MEAN, STD, seed=1)
    whole = views.draw(torch.arange(100), 5, 40, 40)
    for size in (1, 3, 17):
        part = views.draw(torch.arange(41, 41 + size), 5, 40, 40)
        for a, b in zip(whole, part, strict=True):
            assert_same_bits(a.crops.take(slice(41, 41 + size)), b.crops)
            for name, operation in a.operations.items():
                assert_same_bits(operation.take(slice(41, 41 + size)), b.operations[name])


def assert_same_bits(one: Any, other: Any) -> None:
    for field in fields(one):
        assert torch.equal(getattr(one, field.name), getattr(other, field.name)), field.name


def test_a_view_does_not_depend_on_the_rest_of_the_batch():
    images, views = photos(300), Views([BUSY, BUSY], (0.0,) * 3, (1.0,) * 3, seed=1)
    whole = views(images, torch.arange(300), 0)
    rows = torch.tensor([250, 3, 77])
    for a, b in zip(whole, views(images[rows], rows, 0), strict=True):
        # Same bits on the machine this was written on; a matrix library may choose by batch size how to sum.
        torch.testing.assert_close(a[rows], b, atol=1e-6, rtol=0)


def test_seed_epoch_and_view_change_the_view():
    images, indices = photos(4), torch.arange(4)
    first, second = Views([BUSY, BUSY], MEAN, STD, seed=1)(images, indices, 0)
    later, _ = Views([BUSY, BUSY], MEAN, STD, seed=1)(images, indices, 1)
    other, _ = Views([BUSY, BUSY], MEAN, STD, seed=2)(images, indices, 0)
    for changed in (second, later, other):
        assert all((a - b).abs().mean() > 0.01 for a, b in zip(first, changed, strict=True))


def test_images_are_left_as_they_were():
    images = photos(8)
    before = images.clone()
    Views([BUSY], MEAN, STD, seed=1)(images, torch.arange(8), 0)
    assert torch.equal(images, before)


# what is made


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_the_road_by_groups_equals_the_road_by_masks(name, channels):
    images = photos(150, 32, channels)
    for recipe in set(pipeline(name, 32)):
        parameters = Views([recipe], MEAN, STD, seed=2).draw(torch.arange(150), 0, 32, 32)[0]
        grouped, masked = make_grouped(images, recipe, parameters), make_masked(images, recipe, parameters)
        torch.testing.assert_close(grouped, masked, atol=1e-5, rtol=0)


def by_torchvision(image: torch.Tensor, recipe: ViewRecipe, parameters: ViewParameters, row: int) -> torch.Tensor:
    """One view by torchvision's functions, one operation after the other."""
    crop = {field.name: getattr(parameters.crops, field.name)[row].item() for field in fields(parameters.crops)}
    jitter, grey, blur, solarise = (parameters.operations[name] for name in ("jitter", "grey", "blur", "solarise"))
    view = image.permute(2, 0, 1) / 255
    box = [crop[side] for side in ("top", "left", "height", "width")]
    view = F.resized_crop(view, *box, [recipe.size] * 2, antialias=True)
    view = F.hflip(view) if crop["mirrored"] else view
    adjust = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation)
    for slot, blend in enumerate((*jitter.blends[row].tolist(), None)):
        if slot == jitter.hue_slot[row] and jitter.chosen[row]:
            view = F.adjust_hue(view, jitter.hue[row].item())
        if blend is not None and jitter.chosen[row]:
            view = adjust[blend](view, jitter.factors[row, blend].item())
    view = F.rgb_to_grayscale(view, 3) if grey.chosen[row] else view
    taps, sigma = recipe.operations["blur"].taps(recipe.size), blur.sigma[row].item()
    view = F.gaussian_blur(view, [taps] * 2, [sigma] * 2) if blur.chosen[row] else view
    view = F.solarize(view, recipe.solarise_threshold) if solarise.chosen[row] else view
    return F.normalize(view, MEAN, STD)


def test_whole_pipelines_equal_torchvision_operation_by_operation():
    images, views = photos(40), Views([BUSY], MEAN, STD, seed=4)
    parameters = views.draw(torch.arange(40), 0, 32, 32)
    for row, view in enumerate(views.apply(images, parameters)[0]):
        difference = (view - by_torchvision(images[row], BUSY, parameters[0], row)).abs() * min(STD)
        assert difference.max() < 2 / 255
        assert difference.mean() < 0.2 / 255


def test_eval_is_the_whole_image_normalised():
    images = photos(3, 32)
    (view,) = Views(pipeline("eval", 32), MEAN, STD, seed=0)(images, torch.arange(3), 0)
    torch.testing.assert_close(view, F.normalize(images.permute(0, 3, 1, 2) / 255, MEAN, STD), atol=1e-5, rtol=0)


def test_eval_resizes_images_that_are_not_square_whole():
    images = torch.randint(0, 256, (2, 20, 50, 3), dtype=torch.uint8)
    (view,) = Views(pipeline("eval", 16), MEAN, STD, seed=0)(images, torch.arange(2), 0)
    theirs = F.resize(images.permute(0, 3, 1, 2) / 255, [16, 16], antialias=True)
    torch.testing.assert_close(view, F.normalize(theirs, MEAN, STD), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (64, 40), (33, 21)])
def test_the_centre_is_mocos_enlarged_image_cut_to_the_views_side(height: int, width: int):
    images = torch.randint(0, 256, (2, height, width, 3), dtype=torch.uint8)
    (recipe,) = pipeline("eval", 24)
    (view,) = Views([replace(recipe, centre=0.875)], MEAN, STD, seed=0)(images, torch.arange(2), 0)
    high, wide = round(0.875 * height), round(0.875 * width)
    top, left = (height - high) // 2, (width - wide) // 2
    theirs = F.resized_crop(images.permute(0, 3, 1, 2) / 255, top, left, high, wide, [24, 24], antialias=True)
    torch.testing.assert_close(view, F.normalize(theirs, MEAN, STD), atol=1e-5, rtol=0)


def test_images_without_three_channels_keep_their_levels_and_are_still_cropped_and_blurred():
    recipe = replace(BUSY, crop_area=None, flip=0.0, blur=0.0, size=32)
    images = photos(20, 32, 1)
    (view,) = Views([recipe], (0.0,), (1.0,), seed=0)(images, torch.arange(20), 0)
    torch.testing.assert_close(view, images.permute(0, 3, 1, 2) / 255)
    (view,) = Views([replace(recipe, blur=1.0)], (0.0,), (1.0,), seed=0)(images, torch.arange(20), 0)
    assert view.std() < 0.9 * (images / 255).std()


@pytest.mark.parametrize("name", PIPELINES)
def test_a_batch_of_none_has_views_of_none(name):
    views = Views(pipeline(name, 32), MEAN, STD, seed=0)
    nothing = torch.arange(0)
    for recipe, parameters in zip(views.recipes, views.draw(nothing, 0, 32, 32), strict=True):
        for make in (make_grouped, make_masked):
            assert make(photos(0), recipe, parameters).shape == (0, 3, recipe.size, recipe.size)
    crops = [photos(0, recipe.size) for recipe in views.recipes]
    for made in (views(photos(0), nothing, 0), views.finish(crops, nothing, 0)):
        assert [view.shape[0] for view in made] == [0] * len(views.recipes)


def test_views_are_float32_under_autocast():
    images, views = photos(16), Views([BUSY], MEAN, STD, seed=1)
    plain = views(images, torch.arange(16), 0)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(views(images, torch.arange(16), 0)[0], plain)


def test_statistics_of_another_channel_count_are_refused():
    with pytest.raises(ValueError, match="channels"):
        Views([BUSY], (0.5,), (0.5,), seed=0)(photos(2), torch.arange(2), 0)


# devices


@pytest.mark.parametrize("name", PIPELINES)
def test_no_host_sync_or_shape_from_data_on_a_gpu(name):
    """Fake tensors refuse every operation that needs a value on the host."""
    with FakeTensorMode():
        images = torch.empty(8, 32, 32, 3, dtype=torch.uint8, device="cuda")
        views = Views(pipeline(name, 32), MEAN, STD, seed=0)(images, torch.arange(8, device="cuda"), 0)
        assert {view.device.type for view in views} == {"cuda"}
        assert {view.dtype for view in views} == {torch.float32}
        assert {tuple(view.shape[:2]) for view in views} == {(8, 3)}


class MadeFromNumbers(TorchDispatchMode):
    """Counts the tensors that are made from Python's numbers, however that is written."""

    count = 0

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        self.count += operation is torch.ops.aten.lift_fresh.default
        return operation(*arguments, **(named or {}))


def test_constants_are_sent_to_a_device_once():
    """To send them is to wait for the device; fake tensors do not refuse that way."""
    views, images, made = Views(pipeline("simclr", 32), MEAN, STD, seed=0), photos(8), []
    for epoch in range(3):
        with MadeFromNumbers() as mode:
            views(images, torch.arange(8), epoch)
        made.append(mode.count)
    assert made[0] > 0
    assert made[1:] == [0, 0]


@pytest.mark.parametrize("name", PIPELINES)
def test_views_of_meta_tensors_are_meta_tensors(name):
    images = torch.empty(8, 32, 32, 3, dtype=torch.uint8, device="meta")
    for view in Views(pipeline(name, 32), MEAN, STD, seed=0)(images, torch.arange(8, device="meta"), 0):
        assert view.device.type == "meta"
