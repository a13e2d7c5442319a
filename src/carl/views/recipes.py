"""What kinds of views there are: the recipe of a view, and the named pipelines of recipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from carl.errors import UserError, suggestion
from carl.views.operations import OPERATIONS, option_owners
from carl.views.operations.operation import Operation

SMALL_AREA = (0.05, 0.14)  # of small views (Caron et al. 2020, SwAV)


@dataclass(frozen=True, init=False)
class ViewRecipe:
    """One kind of view: how it is cut out of an image, and the operations that follow.

    The options of the operations are arguments and attributes like the recipe's own: `ViewRecipe(32, blur=0.0).blur`.
    Each operation's file has its options with their defaults.
    """

    size: int  # side of the view in pixels
    crop_area: tuple[float, float] | None  # share of the image; None takes the centre
    crop_aspect: tuple[float, float]  # width over height
    flip: float  # probability
    centre: float  # without a random crop: the part of each side that is seen, 1 the whole image
    operations: Mapping[str, Operation]  # in the order in which they are applied

    def __init__(
        self,
        size: int,
        crop_area: tuple[float, float] | None = (0.08, 1.0),  # SimCLR (Chen et al. 2020, appendix A)
        crop_aspect: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float = 0.5,
        *,
        centre: float = 1.0,
        operations: Mapping[str, Operation] | None = None,
        **options: Any,
    ) -> None:
        own = {"size": size, "crop_area": crop_area, "crop_aspect": crop_aspect, "flip": flip, "centre": centre}
        for name, value in {**own, "operations": _with_options(operations or {}, options)}.items():
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        if self.size < 1:
            raise UserError(f"size={self.size} is not a side; use a number of pixels such as 32")
        area, aspect = self.crop_area or (1.0, 1.0), self.crop_aspect
        if not 0 < area[0] <= area[1] <= 1:
            raise UserError(f"crop_area={area} is not a range of parts of an image; put the smaller first, in (0, 1]")
        if not 0 < self.centre <= 1:
            raise UserError(f"centre={self.centre:g} is not a part of an image's side; use a number in (0, 1]")
        if not 0.01 <= aspect[0] <= aspect[1] <= 100:
            raise UserError(f"crop_aspect={aspect} is not a range of width over height; put the smaller first")
        if not 0.0 <= self.flip <= 1.0:
            raise UserError(f"flip={self.flip} is a probability; use a value in [0, 1]")
        for operation in self.operations.values():
            operation.check_side(self.size)

    def __getattr__(self, option: str) -> Any:
        operations: Mapping[str, Operation] = self.__dict__.get("operations", {})
        for operation in operations.values():
            if option in type(operation).model_fields:
                return getattr(operation, option)
        raise AttributeError(f"a view recipe has no attribute {option!r}")

    def __hash__(self) -> int:
        return hash((self.size, self.crop_area, *self.operations.values()))

    def changed(self, **values: Any) -> ViewRecipe:
        """The recipe with other values for some of its arguments."""
        return replace(self, **values)

    def in_words(self) -> str:
        """The recipe in one line, operations in the order in which they are applied."""
        area = self.crop_area
        parts = ["whole image" if area is None else f"crop of {area[0]:g} to {area[1]:g} of the area to {self.size} px"]
        parts.append(f"flip {self.flip:g}")
        for name, operation in self.operations.items():
            if operation.probability > 0:
                details = operation.details(self.size)
                parts.append(f"{name} {operation.probability:g}" + (f" ({details})" if details else ""))
        return "; ".join(parts)


def _with_options(operations: Mapping[str, Operation], options: Mapping[str, Any]) -> dict[str, Operation]:
    """Every operation there is: those that are given, defaults for the others, and `options` put into them."""
    owners = option_owners()
    given: dict[str, dict[str, Any]] = {name: {} for name in OPERATIONS}
    for option, value in options.items():
        if option not in owners:
            raise UserError(f"a view has no option {option!r}{suggestion(option, owners)}")
        given[owners[option]][option] = value
    return {name: (operations.get(name) or kind()).with_options(given[name]) for name, kind in OPERATIONS.items()}


def _simclr(size: int) -> tuple[ViewRecipe, ...]:
    return (ViewRecipe(size), ViewRecipe(size))


def _byol(size: int) -> tuple[ViewRecipe, ...]:
    """Grill et al. 2020, table 6: both views share the crop and the colours; blur and solarisation differ."""
    first = ViewRecipe(size, brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1, blur=1.0)
    return (first, first.changed(blur=0.1, solarise=0.2))


def _moco(size: int) -> tuple[ViewRecipe, ...]:
    """MoCo v2 (Chen et al. 2020b), main_moco.py with --aug-plus."""
    view = ViewRecipe(
        size, (0.2, 1.0), brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, blur_kernel=whole_kernel(size)
    )
    return (view, view)


def whole_kernel(size: int) -> int:
    """Taps of a blur that is not cut off: four of the largest sigma, 2, to each side, as far as the view has room.

    MoCo blurs with PIL, SwAV with 23 taps, on images of any size; SimCLR and BYOL with a tenth of the side.
    """
    return min(17, 2 * size - 1)


def _swav(size: int) -> tuple[ViewRecipe, ...]:
    """Caron et al. 2020: SimCLR's colours and larger crops."""
    view = ViewRecipe(size, crop_area=(0.14, 1.0), blur_kernel=whole_kernel(size))
    return (view, view)


def _swav_multicrop(size: int) -> tuple[ViewRecipe, ...]:
    """Caron et al. 2020: two large views and six small ones (224 and 96 px there; half the side here)."""
    small = ViewRecipe(size // 2, crop_area=SMALL_AREA, blur_kernel=whole_kernel(size // 2))
    return _swav(size) + (small,) * 6


def _supervised(size: int) -> tuple[ViewRecipe, ...]:
    """CARL's paper, appendix "Supervised": a lighter version of MoCo's, so its crops (from 0.2) and jitter; one view.

    How much lighter is not said; here it blurs a fifth of the images where MoCo blurs half of them.
    """
    (first, _) = _moco(size)
    return (first.changed(blur=0.2),)


def _linear(size: int) -> tuple[ViewRecipe, ...]:
    """Crop and flip, as linear classifiers and fine-tuning train on (He et al. 2020, main_lincls.py); one view."""
    return (ViewRecipe(size, jitter=0.0, grey=0.0, blur=0.0),)


def _eval(size: int) -> tuple[ViewRecipe, ...]:
    """The whole image at the given size, nothing random."""
    return (ViewRecipe(size, crop_area=None, flip=0.0, jitter=0.0, grey=0.0, blur=0.0),)


PIPELINES: dict[str, Callable[[int], tuple[ViewRecipe, ...]]] = {
    "simclr": _simclr,
    "byol": _byol,
    "moco": _moco,
    "swav": _swav,
    "swav_multicrop": _swav_multicrop,
    "supervised": _supervised,
    "linear": _linear,
    "eval": _eval,
}


def pipeline(name: str, size: int) -> tuple[ViewRecipe, ...]:
    """The recipes of a named pipeline, one per view, for views of `size` pixels."""
    check_pipeline(name)
    return PIPELINES[name](size)


def check_pipeline(name: str) -> None:
    if name not in PIPELINES:
        raise UserError(f"views.pipeline={name!r} is unknown{suggestion(name, PIPELINES)}")
