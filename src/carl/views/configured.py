"""The views that a configuration asks for."""

from __future__ import annotations

from collections.abc import Sequence

from carl.config import Config, ViewsConfig, validated
from carl.errors import UserError, suggestion
from carl.views.operations import OPERATIONS, option_owners
from carl.views.recipes import SMALL_AREA, ViewRecipe, check_pipeline, pipeline, whole_kernel
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
    recipes = [_adjusted(r, config) for r in _as_many(config.views, config.data.image_size)]
    return Views(recipes, mean, std, config.train.seed)


def _as_many(views: ViewsConfig, side: int) -> list[ViewRecipe]:
    """The pipeline's recipes in turn, as many large and small ones as are asked for; the large ones come first."""
    made = pipeline(views.pipeline, side)
    large = [recipe for recipe in made if recipe.size == side]
    small = [recipe for recipe in made if recipe.size != side]
    large = [large[place % len(large)] for place in range(views.count or len(large))]
    if views.small_count is not None:
        small = [small[0] if small else _fitting(large[0], side // 2, SMALL_AREA)] * views.small_count
    if views.small_size is None and views.small_area is None:
        return large + small
    if not small:
        raise UserError(
            f"views.small_size and views.small_area are for small views, and {views.pipeline} has none; set "
            "views.small_count too"
        )
    if views.small_size is not None and views.small_size >= side:
        raise UserError(f"views.small_size={views.small_size} is not below the {side} px of a large view; lower it")
    return large + [_fitting(r, views.small_size or r.size, views.small_area or r.crop_area) for r in small]


def _fitting(recipe: ViewRecipe, size: int, area: tuple[float, float] | None) -> ViewRecipe:
    """The recipe for views of `size` pixels, its blur no wider than they have room for."""
    kernel = None if recipe.blur_kernel is None else min(recipe.blur_kernel, whole_kernel(size))
    return recipe.changed(size=size, crop_area=area, blur_kernel=kernel)


def _adjusted(recipe: ViewRecipe, config: Config) -> ViewRecipe:
    """The pipeline's recipe with the user's options in it."""
    least = config.views.crop_min
    if least is not None and recipe.crop_area is not None and recipe.size == config.data.image_size:
        recipe = recipe.changed(crop_area=(least, max(recipe.crop_area[1], least)))
    return recipe.changed(**config.views.of_operations)
