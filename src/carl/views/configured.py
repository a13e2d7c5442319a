"""The views that a configuration asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from carl.config import Config
from carl.views.views import ViewRecipe, Views, pipeline


def build_views(config: Config, mean: Sequence[float], std: Sequence[float]) -> Views:
    assert config.data.image_size is not None
    recipes = [_adjusted(r, config) for r in pipeline(config.views.pipeline, config.data.image_size)]
    return Views(recipes, mean, std, config.train.seed)


def _adjusted(recipe: ViewRecipe, config: Config) -> ViewRecipe:
    """The pipeline's recipe with the user's options in it."""
    views = config.views
    if views.crop_min is not None and recipe.crop_area is not None and recipe.size == config.data.image_size:
        recipe = dataclasses.replace(recipe, crop_area=(views.crop_min, max(recipe.crop_area[1], views.crop_min)))
    if views.jitter_strength is not None:
        factor = views.jitter_strength
        recipe = dataclasses.replace(
            recipe,
            brightness=recipe.brightness * factor,
            contrast=recipe.contrast * factor,
            saturation=recipe.saturation * factor,
            hue=min(0.5, recipe.hue * factor),
        )
    given = {name: getattr(views, name) for name in ("hue", "grey", "blur", "blur_sigma", "blur_kernel")}
    return dataclasses.replace(recipe, **{name: value for name, value in given.items() if value is not None})
