"""Views of images for self-supervised learning, made in batches on the training device.

Every random parameter is a pure function of (seed, epoch, sample index, view): `Views.draw` gives them and
`Views.apply` uses them, and neither keeps state. Values stay in float32 from the crop to the normalisation,
where PIL pipelines round to 8 bits after every operation. Every operation is continuous in its input (but for
a solarisation threshold other than 1/2), so a last bit that differs between devices or batch sizes stays one.

There is one pipeline and two ways to spare work in it. A device that computes while the host runs ahead must
not be asked for a mask: there every operation sees every sample, and those it was not drawn for stay as they
were. On a CPU a mask costs nothing to read: samples are sorted so that each operation sees only its own.

Shapes: B samples, H x W source, C channels, S side of the view.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import torch
from torch import Tensor

from carl.errors import UserError, suggestion
from carl.precision import full_precision
from carl.views.colour import HUE_SLOTS, blend_order, greyscale, jitter_, solarise
from carl.views.philox import uniforms
from carl.views.resample import crop_taps, gaussian_blur_, reflection, resample

CROP_ATTEMPTS = 10  # torchvision.transforms.RandomResizedCrop.get_params
DRAWS = 2 * CROP_ATTEMPTS + 13  # per sample and view; new ones go to the end, or old seeds give new views
# Values of a view worked on at once on a CPU: 2 MiB. Less pays more per call, more leaves the cache. Best or
# within noise of it among 2^17 to 2^21 at 32, 64, 96 and 224 px (AMD EPYC, 32 MiB L3; 2026-11-15).
CHUNK_VALUES = 2**19
STRONGEST = 100.0  # jitter; far below it all pixels are black or white, far above it numbers overflow

Side = int | Tensor  # height or width of all images, or (B,) float32 of each


@dataclass(frozen=True)
class ViewRecipe:
    """One kind of view. Defaults are SimCLR's (Chen et al. 2020, appendix A) unless noted."""

    size: int  # side of the view in pixels
    crop_area: tuple[float, float] | None = (0.08, 1.0)  # share of the image; None takes the centre
    crop_aspect: tuple[float, float] = (3 / 4, 4 / 3)  # width over height
    flip: float = 0.5  # probability, as for the other operations
    jitter: float = 0.8
    brightness: float = 0.8  # factor in [1 - b, 1 + b], not below 0
    contrast: float = 0.8
    saturation: float = 0.8
    hue: float = 0.2  # shift in [-h, h] turns
    grey: float = 0.2
    blur: float = 0.5
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    blur_kernel: int | None = None  # taps; None is a tenth of the side as in SimCLR's code, odd, at least 3
    solarise: float = 0.0  # not in SimCLR
    solarise_threshold: float = 0.5  # BYOL (Grill et al. 2020, appendix B)
    centre: float = 1.0  # without a random crop: the part of each side that is seen, 1 the whole image

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"size={self.size} is not a side; use a number of pixels such as 32")
        area, aspect = self.crop_area or (1.0, 1.0), self.crop_aspect
        if not 0 < area[0] <= area[1] <= 1:
            raise UserError(f"crop_area={area} is not a range of parts of an image; put the smaller first, in (0, 1]")
        if not 0 < self.centre <= 1:
            raise UserError(f"centre={self.centre:g} is not a part of an image's side; use a number in (0, 1]")
        if not 0.01 <= aspect[0] <= aspect[1] <= 100:
            raise UserError(f"crop_aspect={aspect} is not a range of width over height; put the smaller first")
        for name in ("brightness", "contrast", "saturation"):
            if not 0.0 <= getattr(self, name) <= STRONGEST:
                raise UserError(f"{name}={getattr(self, name):g} is a strength of jitter; use 0 to {STRONGEST:g}")
        for name in ("flip", "jitter", "grey", "blur", "solarise"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UserError(f"{name}={getattr(self, name)} is a probability; use a value in [0, 1]")
        if not 0.0 <= self.hue <= 0.5:
            raise UserError(f"hue={self.hue} is half of a range on the colour circle; use a value in [0, 0.5]")
        if self.blur > 0 and not 0 < self.blur_sigma[0] <= self.blur_sigma[1] < math.inf:
            raise UserError(f"blur_sigma={self.blur_sigma} is not a range of positive sizes; put the smaller first")
        if self.taps % 2 == 0 or self.taps >= 2 * self.size:
            raise UserError(f"blur_kernel={self.taps} must be odd and below {2 * self.size}, twice the view's side")

    @property
    def taps(self) -> int:
        """Side of the blur kernel."""
        return self.blur_kernel or max(3, 2 * (self.size // 10 // 2) + 1)


@dataclass(frozen=True, eq=False)
class ViewParameters:
    """What was drawn for one view of each sample; (B,) each unless noted."""

    top: Tensor  # int64, as the three below: a crop in whole pixels
    left: Tensor
    height: Tensor
    width: Tensor
    mirrored: Tensor  # bool
    jittered: Tensor  # bool; where False, factors are 1 and hue is 0
    factors: Tensor  # (B, 3) of brightness, contrast, saturation
    blends: Tensor  # (B, 3) int64: which of these three comes first, second, third
    hue: Tensor  # turns
    hue_slot: Tensor  # int64 in 0..3: the number of blends before the hue shift
    grey: Tensor  # bool
    blurred: Tensor  # bool
    sigma: Tensor
    solarised: Tensor  # bool

    def take(self, rows: Tensor) -> ViewParameters:
        """The parameters of the samples at `rows`."""
        return ViewParameters(*(getattr(self, field.name).index_select(0, rows) for field in fields(self)))

    def __getitem__(self, part: slice) -> ViewParameters:
        return ViewParameters(*(getattr(self, field.name)[part] for field in fields(self)))


def draw_crops(
    recipe: ViewRecipe, areas: Tensor, aspects: Tensor, across: Tensor, down: Tensor, height: Side, width: Side
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top, left, height and width of random crops, as torchvision's RandomResizedCrop draws them.

    Area and the logarithm of the aspect are uniform; the first of ten candidates that fits is taken, and a
    central crop of the nearest possible aspect where none does. All candidates, areas and aspects
    (attempts, B), are computed, so no control flow depends on them.
    """
    if recipe.crop_area is None:
        whole = [(torch.zeros_like(across) + side).long() for side in (height, width)]
        seen = [(recipe.centre * side).round().clamp(min=1).long() for side in whole]
        top, left = ((side - part) // 2 for side, part in zip(whole, seen, strict=True))
        return top, left, seen[0], seen[1]
    (least, most), (narrow, wide) = recipe.crop_area, recipe.crop_aspect
    area = (least + (most - least) * areas) * (height * width)
    aspect = torch.exp(math.log(narrow) + (math.log(wide) - math.log(narrow)) * aspects)
    widths, heights = torch.sqrt(area * aspect).round(), torch.sqrt(area / aspect).round()
    fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
    preference = torch.arange(len(areas), 0, -1, device=fits.device)[:, None]  # first candidate highest: no ties
    chosen = (fits * preference).argmax(dim=0, keepdim=True)
    found = fits.any(dim=0)
    fallback_width = _rounded(height * wide, width)
    fallback_height = _rounded(width / narrow, height)
    w = torch.where(found, widths.gather(0, chosen)[0], fallback_width)
    h = torch.where(found, heights.gather(0, chosen)[0], fallback_height)
    top = torch.where(found, torch.floor(down * (height - h + 1)), (height - fallback_height) // 2)
    left = torch.where(found, torch.floor(across * (width - w + 1)), (width - fallback_width) // 2)
    return top.long(), left.long(), h.long(), w.long()


def _rounded(side: float | Tensor, most: Side) -> Side:
    if isinstance(side, Tensor):
        return torch.minimum(torch.round(side), torch.as_tensor(most))
    return min(round(side), int(most))


def draw_view(recipe: ViewRecipe, numbers: Tensor, height: Side, width: Side) -> ViewParameters:
    """Parameters from numbers (DRAWS, B) in [0, 1)."""
    areas, aspects = numbers[:CROP_ATTEMPTS], numbers[CROP_ATTEMPTS : 2 * CROP_ATTEMPTS]
    others = numbers[2 * CROP_ATTEMPTS :]
    across, down, flip, jitter, hue, code, grey, blur, sigma, solar, *factors = others.unbind(0)
    jittered = jitter < recipe.jitter

    def factor(number: Tensor, strength: float) -> Tensor:
        low = max(0.0, 1.0 - strength)
        return torch.where(jittered, low + (1.0 + strength - low) * number, 1.0)

    strengths = (recipe.brightness, recipe.contrast, recipe.saturation)
    order = torch.floor(code * 24).long()  # 6 orders of the blends, times 4 slots for the hue
    top, left, crop_height, crop_width = draw_crops(recipe, areas, aspects, across, down, height, width)
    return ViewParameters(
        top=top,
        left=left,
        height=crop_height,
        width=crop_width,
        mirrored=flip < recipe.flip,
        jittered=jittered,
        factors=torch.stack([factor(n, s) for n, s in zip(factors, strengths, strict=True)], dim=1),
        blends=torch.stack(blend_order(order % 6), dim=1),
        hue=torch.where(jittered, recipe.hue * (2.0 * hue - 1.0), 0.0),
        hue_slot=order // 6,
        grey=grey < recipe.grey,
        blurred=blur < recipe.blur,
        sigma=recipe.blur_sigma[0] + (recipe.blur_sigma[1] - recipe.blur_sigma[0]) * sigma,
        solarised=solar < recipe.solarise,
    )


Cut = Callable[[slice], Tensor]  # a part of the batch to crops (n, C, S, S) in [0, 1]
Cropper = Callable[[Tensor, Tensor, ViewRecipe, ViewParameters], Cut]


def crop_and_flip(images: Tensor, places: Tensor, recipe: ViewRecipe, drawn: ViewParameters) -> Cut:
    """The crops that were drawn for the images at `places` (B,), out of whole images (N, H, W, C) uint8."""
    rows = crop_taps(drawn.top, drawn.height, images.shape[1], recipe.size)
    columns = crop_taps(drawn.left, drawn.width, images.shape[2], recipe.size, drawn.mirrored)
    return lambda part: resample(images, places[part], rows[part], columns[part])


def only_flip(images: Tensor, places: Tensor, recipe: ViewRecipe, drawn: ViewParameters) -> Cut:
    """The same for images that are crops of the view's side already."""

    def cut(part: slice) -> Tensor:
        crops = images.index_select(0, places[part])
        crops = torch.where(drawn.mirrored[part, None, None, None], crops.flip(2), crops)
        return crops.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format).mul_(1 / 255)

    return cut


def _jitter_(views: Tensor, recipe: ViewRecipe, drawn: ViewParameters, slices: Sequence[slice]) -> Tensor:
    factors = drawn.factors.gather(1, drawn.blends)
    blends = list(zip(drawn.blends.unbind(1), factors.unbind(1), strict=True))
    return jitter_(views, blends, drawn.hue if recipe.hue > 0 else None, drawn.hue_slot, slices)


def make_masked(images: Tensor, recipe: ViewRecipe, drawn: ViewParameters, crop: Cropper = crop_and_flip) -> Tensor:
    """Views (B, C, S, S) in [0, 1] without ever reading a parameter on the host."""

    def choose(chosen: Tensor, changed: Tensor, views: Tensor) -> Tensor:
        return torch.where(chosen[:, None, None, None], changed, views)

    views = crop(images, torch.arange(len(images), device=images.device), recipe, drawn)(slice(None))
    coloured = images.shape[3] == 3
    if coloured and recipe.jitter > 0:
        views = _jitter_(views, recipe, drawn, (slice(None),) * HUE_SLOTS)
    if coloured and recipe.grey > 0:
        views = choose(drawn.grey, greyscale(views), views)
    if recipe.blur > 0:
        reads = reflection(recipe.taps, recipe.size, images.device)
        views = choose(drawn.blurred, gaussian_blur_(views.clone(), drawn.sigma, reads), views)
    if coloured and recipe.solarise > 0:
        views = choose(drawn.solarised, solarise(views, recipe.solarise_threshold), views)
    return views


@dataclass(frozen=True, eq=False)
class Sorting:
    """Orders in which a CPU works through a batch, chunk by chunk, so that each operation finds a slice.

    A chunk holds neighbours of the batch, which are worked on in the order of `first` up to the jitter, of
    `second` after it, and put back by `back`; all three permute within chunks. `slots` and `finishes` say,
    chunk by chunk, where the classes end that they are sorted by.
    """

    chunks: list[slice]
    first: Tensor  # by slot of the hue shift, the unjittered last
    slots: list[list[int]]
    second: Tensor  # from the first order: grey, grey and blurred, blurred, plain
    finishes: list[list[int]]
    back: Tensor  # from the second order

    @classmethod
    def of(cls, drawn: ViewParameters, size: int) -> Sorting:
        """The orders for chunks of at most `size` samples."""
        total = len(drawn.top)
        chunk = torch.arange(total) // size

        def sort(classes: Tensor, count: int) -> tuple[Tensor, list[list[int]]]:
            keys = chunk * count + classes
            sizes = torch.bincount(keys, minlength=count * -(-total // size)).view(-1, count)
            return torch.argsort(keys, stable=True), sizes.cumsum(1).tolist()

        first, slots = sort(torch.where(drawn.jittered, drawn.hue_slot, HUE_SLOTS), HUE_SLOTS + 1)
        # In this order the grey are neighbours and so are the blurred.
        finish = torch.where(drawn.blurred, torch.where(drawn.grey, 1, 2), torch.where(drawn.grey, 0, 3))
        second, finishes = sort(finish[first], 4)
        chunks = [slice(start, min(start + size, total)) for start in range(0, total, size)]
        return cls(chunks, first, slots, second, finishes, torch.argsort(first[second]))


def make_grouped(images: Tensor, recipe: ViewRecipe, drawn: ViewParameters, crop: Cropper = crop_and_flip) -> Tensor:
    """The same views as `make_masked` up to rounding, each operation applied only where it was drawn."""
    batch, _, _, channels = images.shape
    coloured = channels == 3
    sorting = Sorting.of(drawn, max(1, CHUNK_VALUES // (channels * recipe.size**2)))
    drawn = drawn.take(sorting.first)
    cut = crop(images, sorting.first, recipe, drawn)
    reads = reflection(recipe.taps, recipe.size, images.device)
    result = torch.empty(batch, channels, recipe.size, recipe.size)
    for chunk, slots, finishes in zip(sorting.chunks, sorting.slots, sorting.finishes, strict=True):
        part = drawn[chunk]
        views = cut(chunk)
        jittered = slots[-2]
        if coloured and jittered > 0:
            slices = [slice(start, stop) for start, stop in pairwise((0, *slots[:-1]))]
            _jitter_(views[:jittered], recipe, part[:jittered], slices)
        second = sorting.second[chunk] - chunk.start
        views = views.index_select(0, second)
        only_grey, all_grey, all_blurred, _ = finishes
        if coloured and all_grey > 0:
            views[:all_grey] = greyscale(views[:all_grey])
        if all_blurred > only_grey:
            blurred = slice(only_grey, all_blurred)
            gaussian_blur_(views[blurred], part.sigma[second[blurred]], reads)
        if coloured and recipe.solarise > 0:
            chosen = part.solarised[second].nonzero()[:, 0]
            views[chosen] = solarise(views[chosen], recipe.solarise_threshold)
        torch.index_select(views, 0, sorting.back[chunk] - chunk.start, out=result[chunk])
    return result


class Views:
    """Makes one view of each image per recipe, normalised for the encoder.

    Jitter, greyscale and solarisation need red, green and blue: for images without exactly three channels
    they are left out, and crop, flip and blur stay.
    """

    def __init__(self, recipes: Sequence[ViewRecipe], mean: Sequence[float], std: Sequence[float], seed: int) -> None:
        if len(mean) != len(std) or min(std) <= 0:
            raise ValueError(f"mean={mean} and std={std} must have one value a channel, std above zero")
        self.recipes = tuple(recipes)
        self.mean = tuple(mean)
        self.std = tuple(std)
        self.seed = seed
        self._normalisation: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def draw(self, indices: Tensor, epoch: int, height: Side, width: Side) -> list[ViewParameters]:
        """Parameters per recipe for samples `indices` (B,) of height x width pixels, on their device."""
        drawn = []
        for view, recipe in enumerate(self.recipes):
            # Numbers of one kind lie together: strided input takes other code paths in exp, with other bits.
            numbers = uniforms(self.seed, epoch, indices, view, DRAWS).T.contiguous()
            drawn.append(draw_view(recipe, numbers, height, width))
        return drawn

    @torch.no_grad()
    def apply(self, images: Tensor, parameters: Sequence[ViewParameters]) -> list[Tensor]:
        """Images (B, H, W, C) uint8 to one (B, C, S, S) float32 tensor per recipe, on their device."""
        return [
            self._make(images, recipe, drawn, crop_and_flip)
            for recipe, drawn in zip(self.recipes, parameters, strict=True)
        ]

    def __call__(self, images: Tensor, indices: Tensor, epoch: int) -> list[Tensor]:
        return self.apply(images, self.draw(indices, epoch, images.shape[1], images.shape[2]))

    def boxes(self, indices: Tensor, epoch: int, sizes: Tensor) -> Tensor:
        """(B, V, 4) top, left, height and width of the crops of images whose heights and widths are `sizes` (B, 2)."""
        height, width = sizes.to(torch.float32).unbind(1)
        drawn = self.draw(indices, epoch, height, width)
        return torch.stack([torch.stack([d.top, d.left, d.height, d.width], dim=1) for d in drawn], dim=1)

    @torch.no_grad()
    def finish(self, crops: Sequence[Tensor], indices: Tensor, epoch: int) -> list[Tensor]:
        """What comes after the crop: views of `crops` that were cut along `boxes`, (B, S, S, C) uint8 per recipe."""
        parameters = self.draw(indices, epoch, 1, 1)  # only where a crop lies depends on the size of the image
        return [
            self._make(cut, recipe, drawn, only_flip)
            for cut, recipe, drawn in zip(crops, self.recipes, parameters, strict=True)
        ]

    def _make(self, images: Tensor, recipe: ViewRecipe, drawn: ViewParameters, crop: Cropper) -> Tensor:
        if images.shape[3] != len(self.mean):
            raise ValueError(
                f"images have {images.shape[3]} channels and mean={self.mean} has {len(self.mean)}; "
                "use the statistics of this data set"
            )
        make = make_grouped if images.device.type == "cpu" else make_masked
        with full_precision(images.device.type):
            return self._normalise_(make(images, recipe, drawn, crop))

    def _normalise_(self, views: Tensor) -> Tensor:
        if views.device not in self._normalisation:  # sent once: the host would wait for the device each time
            scale = views.new_tensor([1 / std for std in self.std])
            shift = views.new_tensor([-mean / std for mean, std in zip(self.mean, self.std, strict=True)])
            self._normalisation[views.device] = scale[:, None, None], shift[:, None, None]
        scale, shift = self._normalisation[views.device]
        return torch.addcmul(shift, views, scale, out=views)


def _simclr(size: int) -> tuple[ViewRecipe, ...]:
    return (ViewRecipe(size), ViewRecipe(size))


def _byol(size: int) -> tuple[ViewRecipe, ...]:
    """Grill et al. 2020, table 6: both views share the crop and the colours; blur and solarisation differ."""
    first = ViewRecipe(size, brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1, blur=1.0)
    return (first, replace(first, blur=0.1, solarise=0.2))


def _moco(size: int) -> tuple[ViewRecipe, ...]:
    """MoCo v2 (Chen et al. 2020b), main_moco.py with --aug-plus."""
    view = ViewRecipe(
        size, (0.2, 1.0), brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, blur_kernel=_whole_kernel(size)
    )
    return (view, view)


def _whole_kernel(size: int) -> int:
    """Taps of a blur that is not cut off: four of the largest sigma, 2, to each side, as far as the view has room.

    MoCo blurs with PIL, SwAV with 23 taps, on images of any size; SimCLR and BYOL with a tenth of the side.
    """
    return min(17, 2 * size - 1)


def _swav(size: int) -> tuple[ViewRecipe, ...]:
    """Caron et al. 2020: SimCLR's colours and larger crops."""
    view = ViewRecipe(size, crop_area=(0.14, 1.0), blur_kernel=_whole_kernel(size))
    return (view, view)


def _swav_multicrop(size: int) -> tuple[ViewRecipe, ...]:
    """Caron et al. 2020: two large views and six small ones (224 and 96 px there; half the side here)."""
    small = ViewRecipe(size // 2, crop_area=(0.05, 0.14), blur_kernel=_whole_kernel(size // 2))
    return _swav(size) + (small,) * 6


def _supervised(size: int) -> tuple[ViewRecipe, ...]:
    """CARL's paper, appendix "Supervised": a lighter version of MoCo's, so its crops (from 0.2) and jitter; one view.

    How much lighter is not said; here it blurs a fifth of the images where MoCo blurs half of them.
    """
    (first, _) = _moco(size)
    return (replace(first, blur=0.2),)


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
    if name not in PIPELINES:
        raise UserError(f"views.pipeline={name!r} is unknown{suggestion(name, PIPELINES)}")
    return PIPELINES[name](size)
