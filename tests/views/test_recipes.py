"""Recipes of views: their options, their rules, and the named pipelines."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import replace

import pytest

from carl.errors import UserError
from carl.views.operations.blur import Blur
from carl.views.recipes import ViewRecipe, pipeline


def test_pipelines_have_the_views_their_papers_have():
    assert [len(pipeline(name, 32)) for name in ("simclr", "byol", "moco", "swav", "swav_multicrop")] == [
        2,
        2,
        2,
        2,
        8,
    ]
    assert [len(pipeline(name, 32)) for name in ("supervised", "eval")] == [1, 1]
    assert [recipe.size for recipe in pipeline("swav_multicrop", 32)] == [32] * 2 + [16] * 6
    first, second = pipeline("byol", 32)
    assert (first.blur, second.blur, first.solarise, second.solarise) == (1.0, 0.1, 0.0, 0.2)


@pytest.mark.parametrize(("size", "taps"), [(16, 3), (32, 3), (64, 7), (96, 9), (224, 23)])
def test_the_blur_kernel_is_a_tenth_of_the_side(size, taps):
    assert Blur().taps(size) == taps


@pytest.mark.parametrize(
    "wrong",
    [
        {"flip": 1.2},
        {"centre": 0},
        {"crop_area": (0.5, 0.1)},
        {"hue": 0.6},
        {"grey": -0.1},
        {"brightness": math.nan},
        {"blur_kernel": 4},
        {"blur_sigma": (0.0, 1.0)},
        {"blur_sigma": (2.0, 1.0)},
        {"blur_kernel": 65},
        {"bluur": 1.0},
    ],
)
def test_impossible_recipes_are_refused_by_name(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        ViewRecipe(32, **wrong)


def test_the_nearest_option_is_named_for_one_that_does_not_exist():
    with pytest.raises(UserError, match="'bluur'; did you mean 'blur'"):
        ViewRecipe(32, bluur=0.5)


def test_options_of_operations_are_arguments_and_attributes_of_a_recipe():
    recipe = ViewRecipe(32, blur=0.0, hue=0.1)
    assert (recipe.blur, recipe.hue, recipe.grey) == (0.0, 0.1, 0.2)
    changed = replace(recipe, flip=0.0, grey=0.5)
    assert (changed.blur, changed.hue, changed.grey, changed.flip) == (0.0, 0.1, 0.5, 0.0)
    assert recipe == ViewRecipe(32, hue=0.1, blur=0.0) != changed
    assert {recipe, replace(changed, flip=0.5, grey=0.2)} == {recipe}
    assert copy.deepcopy(recipe) == pickle.loads(pickle.dumps(recipe)) == recipe
    with pytest.raises(AttributeError, match="bluur"):
        _ = recipe.bluur


def test_a_factor_on_the_jitter_multiplies_the_recipes_strengths_and_leaves_those_that_are_given():
    (recipe, _) = pipeline("byol", 32)
    half = recipe.changed(jitter_strength=0.5)
    assert (half.brightness, half.contrast, half.saturation, half.hue) == (0.2, 0.2, 0.1, 0.05)
    assert half.changed(blur=0.0).brightness == 0.2, "the factor counts once"
    assert recipe.changed(jitter_strength=0.5, hue=0.3) == half.changed(hue=0.3)
    assert recipe.changed(jitter_strength=20).hue == 0.5


def test_a_recipe_in_words_names_its_operations_in_order():
    assert ViewRecipe(32, solarise=0.1).in_words() == (
        "crop of 0.08 to 1 of the area to 32 px; flip 0.5; "
        "jitter 0.8 (brightness 0.8, contrast 0.8, saturation 0.8, hue 0.2); "
        "grey 0.2; blur 0.5 (sigma 0.1 to 2, 3 taps); solarise 0.1"
    )
    (whole,) = pipeline("eval", 32)
    assert whole.in_words() == "whole image; flip 0"


def test_an_unknown_pipeline_is_refused_with_the_nearest_known_one():
    with pytest.raises(UserError, match=r"'simcrl' is unknown; did you mean 'simclr'"):
        pipeline("simcrl", 32)
