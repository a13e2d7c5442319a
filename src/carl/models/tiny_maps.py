"""Convolutions that multiply only the taps that meet the image, for the smallest maps on a CPU.

ResNet-18 with the ImageNet stem at 32 px ends in maps of 2x2 and 1x1, where most taps of a 3x3 kernel multiply
padding: 8 of 9 on a 1x1 map. oneDNN multiplies them all the same, and its backward pass is slower still.

Shapes: N images, I input channels, O output channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

# One dimension of a 2x2 map: two pixels, three taps (l, c, r), padding 1. As Karatsuba, three products, not four:
#   y0 = c x0 + r x1 = c (x0 + x1) + (r - c) x1
#   y1 = l x0 + c x1 = c (x0 + x1) + (l - c) x0
# In two dimensions nine products instead of sixteen (1.3x faster in forward + backward than the dense 4I x 4O
# matrix), and nothing is repeated. The coefficients are -1, 0 and 1: it rounds about as the dense product does.
TAPS_TO_FACTORS = ((1.0, -1.0, 0.0), (0.0, 1.0, 0.0), (0.0, -1.0, 1.0))  # (l, c, r) -> (l - c, c, r - c)
PIXELS_TO_FACTORS = ((1.0, 0.0), (1.0, 1.0), (0.0, 1.0))  # (x0, x1) -> (x0, x0 + x1, x1)
PRODUCTS_TO_PIXELS = ((0.0, 1.0, 1.0), (1.0, 1.0, 0.0))  # products of the factors -> (y0, y1)

# Below these oneDNN is as fast: copying the taps, or calling a few more operations, is not repaid.
MINIMUM_BATCH = 32
MINIMUM_BATCH_CHANNELS_LAST = 128  # oneDNN reorders the weights in each step
MINIMUM_CHANNELS = 64
IMAGE_CHANNELS = 4  # a convolution with at most this many channels is the stem

# An older torch cannot tell an export from a compilation: there both keep the plain convolution.
_is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)


class TinyMapConv2d(nn.Conv2d):
    """An `nn.Conv2d` that becomes matrix products on tiny maps; elsewhere it is the plain convolution.

    Parameters, state dict, outputs and gradients are those of `nn.Conv2d`.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not _was_measured(self, input):
            return super().forward(input)
        size = tuple(input.shape[2:])
        stride = self.stride[0]
        if size == (1, 1) and self.kernel_size == (3, 3) and not _is_full_precision(input):
            # Faster or not: oneDNN leaves the bfloat16 weight gradient of taps that meet nothing as the memory was
            # (torch 2.15, AVX-512, stride 2).
            return _product_for_each_output(input, self.weight, self.bias, stride)
        if len(input) < MINIMUM_BATCH or min(self.in_channels, self.out_channels) < MINIMUM_CHANNELS:
            return super().forward(input)
        if self.kernel_size == (1, 1):
            if size in ((1, 1), (2, 2)) or (size == (4, 4) and stride == 2):
                return _pointwise(input[:, :, ::stride, ::stride], self.weight, self.bias)
        elif size == (1, 1) or (size in ((2, 2), (4, 4)) and stride == 2):
            return _product_for_each_output(input, self.weight, self.bias, stride)
        elif size == (2, 2) and _is_full_precision(input):
            return _two_by_two(input, self.weight, self.bias)
        elif size == (2, 2):  # sums of bfloat16 factors would round three times as much as one product
            product: Tensor = WholeMapProduct.apply(input, self.weight, _half_precision(input))
            return product if self.bias is None else product + self.bias.to(product.dtype)[:, None, None]
        return super().forward(input)


class ChannelsLastConv2d(nn.Conv2d):
    """An `nn.Conv2d` that takes its images channels-last on a CPU, and so hands that order to all that follows.

    oneDNN and max-pool work faster on it; the values are the same.
    """

    def forward(self, input: Tensor) -> Tensor:
        if _was_measured(self, input) and len(input) >= MINIMUM_BATCH_CHANNELS_LAST:
            input = input.contiguous(memory_format=torch.channels_last)
        return super().forward(input)


class MetTapsConv2d(nn.Conv2d):
    """An `nn.Conv2d` that leaves out the taps that meet no pixel, in half precision on a CPU.

    Kernels larger than the map have such taps. oneDNN leaves the bfloat16 gradient of their weights as the memory was
    (torch 2.15, AVX-512; `python -m benchmarks.bf16_convolutions` looks for such errors). Here it is zero, as it should
    be, and all else is the same.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not _was_measured(self, input) or _is_full_precision(input) or isinstance(self.padding, str):
            return super().forward(input)
        sides = zip(input.shape[2:], self.kernel_size, self.stride, self.padding, self.dilation, strict=True)
        (rows, above, below), (columns, left, right) = (_met_taps(*side) for side in sides)
        if (rows.stop - rows.start, columns.stop - columns.start) == self.kernel_size:
            return super().forward(input)
        padded = functional.pad(input, (left, right, above, below))
        return functional.conv2d(
            padded, self.weight[:, :, rows, columns], self.bias, self.stride, dilation=self.dilation
        )


def _met_taps(size: int, kernel: int, stride: int, padding: int, dilation: int) -> tuple[slice, int, int]:
    """Along one dimension: the taps that meet a pixel, and the padding that they need before and after the map."""
    outputs = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    met = [
        tap
        for tap in range(kernel)
        if any(0 <= output * stride - padding + tap * dilation < size for output in range(outputs))
    ]
    if not met:
        return slice(0, kernel), padding, padding
    before = padding - met[0] * dilation
    after = (outputs - 1) * stride + dilation * (met[-1] - met[0]) + 1 - before - size
    return slice(met[0], met[-1] + 1), before, after


def _was_measured(conv: nn.Conv2d, input: Tensor) -> bool:
    """Whether the faster ways were measured, and are right, for such tensors."""
    if _is_exporting() or torch.jit.is_tracing():  # type: ignore[attr-defined]
        return False  # an exported graph may run on any device
    return input.device.type == "cpu" and input.dim() == 4 and input.shape[1] == conv.in_channels


def _is_full_precision(input: Tensor) -> bool:
    return input.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")


def _half_precision(input: Tensor) -> torch.dtype:
    """The precision that products are computed in, if it is not full precision."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else input.dtype


def _product_for_each_output(map: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """A 3x3 convolution by one matrix product for each output pixel, of the taps that meet the map there."""
    images, _, height, width = map.shape
    pixels, taps = map.permute(0, 2, 3, 1), weight.permute(0, 2, 3, 1)  # (N, H, W, I), (O, 3, 3, I)
    rows, columns = _meetings(height, stride), _meetings(width, stride)
    outputs = [
        functional.linear(pixels[:, y, x].flatten(1), taps[:, tap_y, tap_x].flatten(1), bias)  # (N, O)
        for y, x, tap_y, tap_x in _all_meetings((height, width), stride)
    ]
    stacked = outputs[0] if len(outputs) == 1 else torch.stack(outputs, dim=1)  # a stack of one would copy
    return stacked.view(images, len(rows), len(columns), len(weight)).permute(0, 3, 1, 2)


class WholeMapProduct(torch.autograd.Function):
    """A 3x3 convolution with stride 1 of a 2x2 map, by one product with a matrix of all pixels by all pixels.

    Every pixel of a 2x2 map meets every other, so the (4I, 4O) matrix has no zeros: 16 products of (I, O) matrices
    where oneDNN takes 36. Products are in `dtype`. The gradient of the weights is summed in the precision of the
    weights, so that it is as near to the exact one as oneDNN's.
    """

    @staticmethod
    def forward(ctx: Any, map: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        images, outputs = len(map), len(weight)
        taps = weight.to(dtype).permute(0, 2, 3, 1)  # (O, 3, 3, I)
        meetings = _all_meetings(map.shape[2:], stride=1)
        matrix = torch.stack([taps[:, tap_y, tap_x] for _, _, tap_y, tap_x in meetings])  # (4, O, 2, 2, I)
        matrix = matrix.view(len(meetings) * outputs, -1)
        rows = map.to(dtype).permute(0, 2, 3, 1).reshape(images, matrix.shape[1])  # (N, 4I)
        ctx.save_for_backward(rows, matrix)
        ctx.map_type, ctx.map_shape, ctx.weight_type, ctx.weight_shape = (
            map.dtype,
            map.shape,
            weight.dtype,
            weight.shape,
        )
        return (rows @ matrix.t()).view(images, *map.shape[2:], outputs).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        rows, matrix = ctx.saved_tensors
        images, channels, height, width = ctx.map_shape
        after = gradient.to(matrix.dtype).permute(0, 2, 3, 1).reshape(images, len(matrix))  # (N, 4O)
        to_map = to_weight = None
        if ctx.needs_input_grad[0]:
            to_map = (after @ matrix).view(images, height, width, channels).permute(0, 3, 1, 2).to(ctx.map_type)
        if ctx.needs_input_grad[1]:
            outputs = ctx.weight_shape[0]
            meetings = _all_meetings((height, width), stride=1)
            of_matrix = (after.t() @ rows).view(len(meetings), outputs, height, width, channels)
            taps = of_matrix.new_zeros((outputs, 3, 3, channels), dtype=ctx.weight_type)
            for at_output, (rows_met, columns_met, tap_y, tap_x) in zip(of_matrix, meetings, strict=True):
                taps[:, tap_y, tap_x] += at_output[:, rows_met, columns_met]
            to_weight = taps.permute(0, 3, 1, 2)
        return to_map, to_weight, None


def _all_meetings(size: Sequence[int], stride: int) -> list[tuple[slice, slice, slice, slice]]:
    """For each output pixel, row by row: the rows and columns it sees, and the taps that meet them."""
    return [(y, x, tap_y, tap_x) for y, tap_y in _meetings(size[0], stride) for x, tap_x in _meetings(size[1], stride)]


def _meetings(size: int, stride: int) -> list[tuple[slice, slice]]:
    """For each output along one dimension (padding 1): the input pixels it sees, and the taps that meet them."""
    return [
        (slice(max(start, 0), min(start + 3, size)), slice(max(-start, 0), min(size - start, 3)))
        for start in range(-1, size - 1, stride)
    ]


def _pointwise(map: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A 1x1 convolution: one linear layer for all pixels; the result is channels-last."""
    return functional.linear(map.permute(0, 2, 3, 1), weight.flatten(1), bias).permute(0, 3, 1, 2)


def _two_by_two(map: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A 3x3 convolution with stride 1 of a 2x2 map, by nine products of (N, I) with (I, O) matrices."""
    images, channels = map.shape[:2]
    outputs = weight.shape[0]
    pixels = map.flatten(2).permute(2, 0, 1).reshape(4, images * channels)
    taps = weight.flatten(2).permute(2, 0, 1).reshape(9, outputs * channels)
    map_factors = (_both_dimensions(PIXELS_TO_FACTORS, map) @ pixels).view(9, images, channels)
    tap_factors = (_both_dimensions(TAPS_TO_FACTORS, weight) @ taps).view(9, outputs, channels)
    products = torch.bmm(map_factors, tap_factors.transpose(1, 2)).view(9, images * outputs)
    result = (products.t() @ _both_dimensions(PRODUCTS_TO_PIXELS, map).t()).view(images, outputs, 2, 2)
    if bias is not None:
        result = result + bias[:, None, None]
    return result.contiguous(memory_format=torch.channels_last) if _is_channels_last(map) else result


def _both_dimensions(matrix: tuple[tuple[float, ...], ...], like: Tensor) -> Tensor:
    """The matrix applied to the height and to the width, as one matrix on the flattened map."""
    one_dimension = like.new_tensor(matrix)
    return torch.kron(one_dimension, one_dimension)


def _is_channels_last(map: Tensor) -> bool:
    return map.is_contiguous(memory_format=torch.channels_last)


def adapt_to_tiny_maps(module: nn.Module) -> nn.Module:
    """Make a module's convolutions fast on a CPU where its maps are tiny, in place; the module is returned.

    The objects stay (parameters, hooks, references held elsewhere), only their class changes. Subclasses of
    `nn.Conv2d` are left alone: their forward is their own.
    """
    for child in module.modules():
        if type(child) is nn.Conv2d:
            if _is_eligible(child):
                child.__class__ = TinyMapConv2d
            elif child.in_channels <= IMAGE_CHANNELS and child.kernel_size != (1, 1):
                # oneDNN's weight gradient of a strided 1x1 convolution of less than 8 channels-last channels is
                # sometimes wrong (its issue 6035).
                child.__class__ = ChannelsLastConv2d
            elif child.kernel_size != (1, 1) and child.groups == 1 and child.padding_mode == "zeros":
                child.__class__ = MetTapsConv2d  # depthwise ones are right
    return module


def _is_eligible(conv: nn.Conv2d) -> bool:
    return (
        conv.in_channels > IMAGE_CHANNELS
        and (conv.kernel_size, conv.padding) in (((3, 3), (1, 1)), ((1, 1), (0, 0)))
        and conv.stride in ((1, 1), (2, 2))
        and conv.dilation == (1, 1)
        and conv.groups == 1
        and conv.padding_mode == "zeros"
    )
