"""The views that a configuration asks for."""

from __future__ import annotations

from collections.abc import Sequence

from carl.config import Config, ViewsConfig, validated
from carl.errors import UserError, suggestion
from carl.views.operations import OPERATIONS, option_owners
from carl.views.recipes import ViewRecipe, check_pipeline, pipeline
from carl.views.views import Views


def check_views(views: ViewsConfig) -> None:
    """Refuse a pipeline or an option that does not exist, and a value that breaks a rule of its operation.

    This needs no data. Rules that depend on the side of the views are checked by `build_views`.
    """
    check_pipeline(views.pipeline)
    owners = option_owners()
    for option in views.of_operations:
        if option not in owners:
            raise UserError(f"unknown key views.{option}{suggestion(option, [*ViewsConfig.model_fields, *owners])}")
    for name, kind in OPERATIONS.items():
        validated(kind, {o: value for o, value in views.of_operations.items() if owners[o] == name}, "views.")


def build_views(config: Config, mean: Sequence[float], std: Sequence[float]) -> Views:
    check_views(config.views)
    assert config.data.image_size is not None
    recipes = [_adjusted(r, config) for r in pipeline(config.views.pipeline, config.data.image_size)]
    return Views(recipes, mean, std, config.train.seed)


def _adjusted(recipe: ViewRecipe, config: Config) -> ViewRecipe:
    """The pipeline's recipe with the user's options in it."""
    least = config.views.crop_min
    if least is not None and recipe.crop_area is not None and recipe.size == config.data.image_size:
        recipe = recipe.changed(crop_area=(least, max(recipe.crop_area[1], least)))
    return recipe.changed(**config.views.of_operations)
