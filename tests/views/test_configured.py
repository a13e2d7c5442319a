"""The section [views]: what it refuses, and the views it gives."""

from __future__ import annotations

import pytest

from carl.config import Config, parse_assignments, resolve
from carl.errors import UserError
from carl.methods.carl import CarlOptions
from carl.views.configured import build_views, check_views


def configured(*assignments: str) -> Config:
    return resolve([{"data": {"source": "x", "image_size": 32}}, parse_assignments(assignments)], CarlOptions)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("views.bluur=0.3", "unknown key views.bluur; did you mean 'blur'?"),
        ("views.pipelin=moco", "unknown key views.pipelin; did you mean 'pipeline'?"),
        ("views.size=64", "unknown key views.size; use one of: "),
        ("views.pipeline=simcrl", "views.pipeline='simcrl' is unknown; did you mean 'simclr'?"),
        ("views.grey=2", "views.grey=2: input should be less than or equal to 1; change it"),
        ("views.hue=lots", "views.hue='lots': input should be a valid number"),
        ("views.hue=nan", "views.hue=nan: input should be a finite number; change it"),
        ("views.jitter_strength=-1", "views.jitter_strength=-1: input should be greater than or equal to 0; change it"),
        ("views.jitter_strength=1e9", "views.jitter_strength=1000000000.0: input should be less than or equal to 100"),
        ("views.blur_kernel=4", "views.blur_kernel=4 must be odd; use 5"),
        ("views.blur_sigma=[1]", "views.blur_sigma.1"),
        ("views.blur_sigma=[3, 1]", "views.blur_sigma=(3.0, 1.0) is not a range of positive sizes; put"),
        ("views.solarise={a = 1}", "views.solarise={'a': 1}: input should be a valid number; change it"),
    ],
)  # fmt: skip
def test_what_no_operation_takes_is_refused_in_one_line(assignment: str, message: str):
    config = configured(assignment)
    for check in (lambda: check_views(config.views), lambda: build_views(config, (0.5,) * 3, (0.5,) * 3)):
        with pytest.raises(UserError) as caught:
            check()
        assert str(caught.value).startswith(message)
        assert "\n" not in str(caught.value)


def test_a_kernel_wider_than_the_view_allows_is_refused():
    with pytest.raises(UserError, match="blur_kernel=101 is too wide for views of 32 px"):
        build_views(configured("views.blur_kernel=101"), (0.5,) * 3, (0.5,) * 3)


def test_options_are_put_into_every_view_of_the_pipeline():
    config = configured("views.pipeline=byol", "views.blur=0.3", "views.solarise=0.5", "views.blur_sigma=[0.5, 1]")
    for recipe in build_views(config, (0.5,) * 3, (0.5,) * 3).recipes:
        assert (recipe.blur, recipe.solarise, recipe.blur_sigma) == (0.3, 0.5, (0.5, 1.0))
        assert (recipe.brightness, recipe.hue) == (0.4, 0.1), "the pipeline's own"


def test_a_factor_on_the_jitter_leaves_the_hue_that_is_given_beside_it():
    (recipe, _) = build_views(configured("views.jitter_strength=0.5", "views.hue=0.3"), (0.5,) * 3, (0.5,) * 3).recipes
    assert (recipe.brightness, recipe.contrast, recipe.saturation, recipe.hue) == (0.4, 0.4, 0.4, 0.3)


def test_views_come_in_the_number_and_the_sizes_that_are_asked_for():
    def sizes(*assignments: str) -> list[tuple[int, tuple[float, float] | None]]:
        recipes = build_views(configured(*assignments), (0.5,) * 3, (0.5,) * 3).recipes
        return [(recipe.size, recipe.crop_area) for recipe in recipes]

    large, small = (32, (0.08, 1.0)), (16, (0.05, 0.14))
    assert sizes() == [large] * 2
    assert sizes("views.count=3", "views.small_count=2") == [large] * 3 + [small] * 2
    assert sizes("views.small_count=1", "views.small_size=20", "views.small_area=[0.1, 0.3]")[2] == (20, (0.1, 0.3))
    assert sizes("views.pipeline=swav_multicrop", "views.small_count=4")[2:] == [small] * 4
    assert sizes("views.pipeline=swav", "views.small_count=1", "views.small_size=8")[2] == (8, (0.05, 0.14))


def test_more_views_than_a_pipeline_has_take_its_recipes_in_turn():
    first, second, third = build_views(
        configured("views.pipeline=byol", "views.count=3"), (0.5,) * 3, (0.5,) * 3
    ).recipes
    assert (first.solarise, second.solarise) == (0.0, 0.2)
    assert third == first
