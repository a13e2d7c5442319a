"""Views of images for self-supervised learning, made in batches on the training device.

Every random parameter is a pure function of (seed, epoch, sample index, view): `Views.draw` gives them and
`Views.apply` uses them, and neither keeps state. Values stay in float32 from the crop to the normalisation,
where PIL pipelines round to 8 bits after every operation. Every operation is continuous in its input (except
solarisation with a threshold other than 1/2), so a last bit that differs between devices or batch sizes stays one.

A view is a crop and then the operations of `carl.views.operations`, one after the other. Two executors spare work in
different ways. A device that computes while the host runs ahead must not be asked for a mask: there every operation
sees every sample, and those it was not drawn for stay as they were. On a CPU a mask costs nothing to read: samples
are sorted so that each operation sees only its own.

Our own, because torchvision's transforms draw one set of parameters for a whole batch, and both torchvision and kornia
draw from a generator with state.

Shapes: B samples, H x W source, C channels, S side of the view.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from carl.precision import full_precision
from carl.views.crop import Cropper, Crops, Side, crop_and_flip, draw_crops, only_flip
from carl.views.operations.operation import Drawn, Operation
from carl.views.philox import uniforms
from carl.views.recipes import ViewRecipe

DRAWS = 33  # random numbers for each sample and view that the crop and the first operations share
# Values of a view worked on at once on a CPU: 2 MiB. Less pays more per call, more leaves the cache. Best or
# within noise of it among 2^17 to 2^21 at 32, 64, 96 and 224 px (AMD EPYC, 32 MiB L3; 2026-11-15).
CHUNK_VALUES = 2**19
RANKS = 2**16  # more than an operation has sort keys


@dataclass(frozen=True, eq=False)
class ViewParameters:
    """What was drawn for one view of each sample."""

    crops: Crops
    operations: Mapping[str, Drawn]  # those with a probability above zero


Work = Sequence[tuple[Operation, Drawn]]


def _work(recipe: ViewRecipe, drawn: ViewParameters, channels: int) -> Work:
    """The operations to be done on images with so many channels, in order."""
    return [
        (recipe.operations[name], parameters)
        for name, parameters in drawn.operations.items()
        if channels == 3 or not recipe.operations[name].needs_colour
    ]


def make_masked(images: Tensor, recipe: ViewRecipe, drawn: ViewParameters, cropper: Cropper = crop_and_flip) -> Tensor:
    """Views (B, C, S, S) in [0, 1] without ever reading a parameter on the host."""
    everything = torch.arange(len(images), device=images.device)
    views = cropper(images, everything, recipe.size, drawn.crops)(slice(None))
    for operation, parameters in _work(recipe, drawn, images.shape[3]):
        views = operation.apply_masked(views, parameters)
    return views


@dataclass(frozen=True, eq=False)
class Turn:
    """One or two operations on a CPU, in an order where the samples that each was drawn for stand side by side."""

    order: Tensor  # (B,) from the order of the turn before
    work: Work  # what was drawn, in this order


def _turns(work: Work, chunk: Tensor) -> tuple[list[Turn], Tensor]:
    """The turns of all operations and the order after the last one. Samples stay in their `chunk` (B,)."""
    queue, turns, standing = list(work), [], torch.arange(len(chunk))
    while queue:
        together = 2 if all(operation.sort_key(drawn) is None for operation, drawn in queue[:2]) else 1
        group, queue = queue[:together], queue[together:]
        order = torch.argsort(chunk * RANKS + _rank(group)[standing], stable=True)
        standing = standing[order]
        turns.append(Turn(order, [(operation, drawn.take(standing)) for operation, drawn in group]))
    return turns, standing


def _rank(group: Work) -> Tensor:
    """(B,) by which the samples of a chunk are sorted for one operation or two."""
    (operation, drawn), *others = group
    key = operation.sort_key(drawn)
    if key is not None:
        return torch.where(drawn.chosen, key, RANKS - 1)
    first = drawn.chosen
    second = others[0][1].chosen if others else torch.zeros_like(first)
    return torch.where(second, torch.where(first, 1, 2), torch.where(first, 0, 3))  # the first only, both, the second


def make_grouped(images: Tensor, recipe: ViewRecipe, drawn: ViewParameters, cropper: Cropper = crop_and_flip) -> Tensor:
    """The same views as `make_masked` up to rounding, each operation applied only where it was drawn.

    A chunk holds neighbours of the batch. They are cut in the order of the first turn, which costs nothing, change
    places before every other turn, and are put back at the end.
    """
    batch, _, _, channels = images.shape
    length = max(1, CHUNK_VALUES // (channels * recipe.size**2))
    turns, last = _turns(_work(recipe, drawn, channels), torch.arange(batch) // length)
    order = turns[0].order if turns else last
    cut = cropper(images, order, recipe.size, drawn.crops.take(order))
    back = torch.argsort(last)
    result = torch.empty(batch, channels, recipe.size, recipe.size)
    for start in range(0, batch, length):
        chunk = slice(start, min(start + length, batch))
        views = cut(chunk)
        for number, turn in enumerate(turns):
            if number > 0:
                views = views.index_select(0, turn.order[chunk] - start)
            for operation, parameters in turn.work:
                own = parameters.chosen[chunk].nonzero()[:, 0]
                if len(own) > 0:
                    first, end = int(own[0]), int(own[-1]) + 1
                    operation.apply_sorted_(views[first:end], parameters.take(slice(start + first, start + end)))
        torch.index_select(views, 0, back[chunk] - start, out=result[chunk])
    return result


class Views:
    """Makes one view of each image per recipe, normalised for the encoder.

    Operations that need red, green and blue (jitter, greyscale and solarisation) are left out for images without
    exactly three channels; crop, flip and blur stay.
    """

    def __init__(
        self, recipes: Sequence[ViewRecipe], mean: Sequence[float], std: Sequence[float], seed: int, first: int = 0
    ) -> None:
        """`first` is the number of the first view, on which its random numbers depend."""
        if len(mean) != len(std) or min(std) <= 0:
            raise ValueError(f"mean={mean} and std={std} must have one value per channel, std above zero")
        self.recipes = tuple(recipes)
        self.mean = tuple(mean)
        self.std = tuple(std)
        self.seed = seed
        self.first = first
        self._normalisation: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def parted(self) -> tuple[Views, Views]:
        """The first view alone and the others alone, each as it would be among all."""
        first, others = self.recipes[:1], self.recipes[1:]
        return (
            Views(first, self.mean, self.std, self.seed, self.first),
            Views(others, self.mean, self.std, self.seed, self.first + 1),
        )

    def draw(self, indices: Tensor, epoch: int, height: Side, width: Side) -> list[ViewParameters]:
        """Parameters per recipe for samples `indices` (B,) of height x width pixels, on their device."""
        return [self._draw(view, indices, epoch, height, width) for view in range(len(self.recipes))]

    def _draw(self, view: int, indices: Tensor, epoch: int, height: Side, width: Side) -> ViewParameters:
        def numbers(count: int, first_block: int = 0) -> Tensor:  # (count, B)
            # Numbers of one kind lie together: strided input takes other code paths in exp, with other bits.
            return uniforms(self.seed, epoch, indices, self.first + view, count, first_block).T.contiguous()

        recipe, shared, operations = self.recipes[view], numbers(DRAWS), {}
        for name, operation in recipe.operations.items():
            if operation.probability > 0:
                own = [shared[place] for place in operation.places]
                if not own:  # its own list, which begins at a block that is named after it
                    own = list(numbers(operation.draws, zlib.crc32(name.encode())))
                operations[name] = operation.draw(own, recipe.size)
        return ViewParameters(draw_crops(recipe, shared, height, width), operations)

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
        crops = [drawn.crops for drawn in self.draw(indices, epoch, height, width)]
        return torch.stack([torch.stack([c.top, c.left, c.height, c.width], dim=1) for c in crops], dim=1)

    @torch.no_grad()
    def finish(self, crops: Sequence[Tensor], indices: Tensor, epoch: int) -> list[Tensor]:
        """What comes after the crop: views of `crops` that were cut along `boxes`, (B, S, S, C) uint8 per recipe."""
        parameters = self.draw(indices, epoch, 1, 1)  # only where a crop lies depends on the size of the image
        return [
            self._make(cut, recipe, drawn, only_flip)
            for cut, recipe, drawn in zip(crops, self.recipes, parameters, strict=True)
        ]

    def _make(self, images: Tensor, recipe: ViewRecipe, drawn: ViewParameters, cropper: Cropper) -> Tensor:
        if images.shape[3] != len(self.mean):
            raise ValueError(
                f"images have {images.shape[3]} channels and mean={self.mean} has {len(self.mean)}; "
                "use the statistics of this data set"
            )
        make = make_grouped if images.device.type == "cpu" else make_masked
        with full_precision(images.device.type):
            return self._normalise_(make(images, recipe, drawn, cropper))

    def _normalise_(self, views: Tensor) -> Tensor:
        if views.device not in self._normalisation:  # sent once: the host would wait for the device each time
            scale = views.new_tensor([1 / std for std in self.std])
            shift = views.new_tensor([-mean / std for mean, std in zip(self.mean, self.std, strict=True)])
            self._normalisation[views.device] = scale[:, None, None], shift[:, None, None]
        scale, shift = self._normalisation[views.device]
        return torch.addcmul(shift, views, scale, out=views)
