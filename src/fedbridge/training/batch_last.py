"""Small convolutions and their pooling, quicker on a processor: the batch is the innermost axis.

With few channels, as in the paper's network, torch's convolutions and pooling leave most of a
processor's lanes empty. With all rows of a batch beside each other in memory every step is one on
long runs of numbers: the columns of a convolution are ``kw`` copies of the image instead of
``kh kw`` (Cho, Brand: MEC: Memory-efficient Convolution for Deep Neural Network, 2017), multiplied
where they lie, and pooling is a maximum of neighbouring runs.

Tensors keep their logical shape (rows, channels, height, width); only their strides differ, so that
layers between these (an activation, for example) need not know. Pooling gives torch's numbers and
gradients to the bit, ties included; convolutions add in another order. A workbench puts these in
the place of a model's own layers (``quicken``); the model that is delivered has its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

MOST_INPUTS, MOST_OUTPUTS = 8, 16
"""Channels beyond which torch's own convolutions are quicker."""
LEAST_ROWS, MOST_ROWS = 8, 256
"""Rows of a batch between which this is quicker; more do not fit into the processor's cache."""


def quicken(model: nn.Module) -> bool:
    """Let the layers of a model that can be quicker be so, in place; whether there are any."""
    found = False
    for part in model.modules():
        if _is_small_convolution(part):
            part.__class__, found = BatchLastConv2d, True
        elif _is_plain_pooling(part):
            part.__class__ = BatchLastMaxPool2d
    return found


def _is_small_convolution(part: nn.Module) -> bool:
    return (
        type(part) is nn.Conv2d
        and part.in_channels <= MOST_INPUTS
        and part.out_channels <= MOST_OUTPUTS
        and part.stride == part.dilation == (1, 1)
        and part.groups == 1
        and part.padding_mode == "zeros"
        and not isinstance(part.padding, str)
    )


def _is_plain_pooling(part: nn.Module) -> bool:
    return (
        type(part) is nn.MaxPool2d
        and part.kernel_size in (2, (2, 2))
        and part.stride in (2, (2, 2))
        and part.padding in (0, (0, 0))
        and part.dilation in (1, (1, 1))
        and not part.ceil_mode
        and not part.return_indices
    )


class BatchLastConv2d(nn.Conv2d):
    """A convolution of few channels; batches that this is not made for go torch's way."""

    def forward(self, x: Tensor) -> Tensor:
        """The convolved images, the batch innermost."""
        if x.dim() != 4 or not LEAST_ROWS <= len(x) <= MOST_ROWS:
            return super().forward(x)
        padding: Any = self.padding
        found: Tensor = _Convolution.apply(x, self.weight, self.bias, padding)  # type: ignore[no-untyped-call]
        return found


class BatchLastMaxPool2d(nn.MaxPool2d):
    """The largest of every four pixels, of images that have the batch innermost already."""

    def forward(self, x: Tensor) -> Tensor:
        """The pooled images, laid out as they came."""
        if x.dim() != 4 or x.stride(0) != 1 or len(x) < LEAST_ROWS or min(x.shape[2:]) < 2:
            pooled: Tensor = super().forward(x)
            return pooled
        found: Tensor = _Pooling.apply(x)  # type: ignore[no-untyped-call]
        return found


def _inside_out(x: Tensor) -> Tensor:
    """Images (rows, channels, height, width) as (height, channels, width, rows)."""
    return x.permute(2, 1, 3, 0)


def _outside_in(x: Tensor) -> Tensor:
    """The way back."""
    return x.permute(3, 1, 0, 2)


class _Convolution(Function):
    """``y[h] = W · columns[h]`` for every line ``h`` of the result, the columns being one view.

    ``wide`` holds (line, channel, shift, place · rows), so that the ``kh`` lines which a line of
    the result is made of lie one after the other: rows ``kh · channels · kw`` of a matrix.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]
    ) -> Tensor:
        outputs, channels, high, broad = weight.shape
        image = _framed(_inside_out(x), padding)
        height, _, width, rows = image.shape
        lines, run = height - high + 1, (width - broad + 1) * rows
        line = width * rows
        shifted = image.as_strided(
            (height, channels, broad, run), (channels * line, line, rows, 1), 0
        )
        wide = shifted.contiguous().view(height, channels * broad, run)
        matrix = weight.transpose(1, 2).reshape(1, outputs, -1).expand(lines, -1, -1)
        columns = _columns(wide, high)
        if bias is None:
            found = torch.bmm(matrix, columns)
        else:
            found = torch.baddbmm(bias[:, None], matrix, columns)
        ctx.save_for_backward(x, weight, wide)
        ctx.padding, ctx.shape = padding, image.shape
        return _outside_in(found.view(lines, outputs, -1, rows))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, wide = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody wants to differentiate once more
            return _plain_gradients(ctx, grad, x, weight)
        outputs, channels, high, broad = weight.shape
        height, _, width, rows = ctx.shape
        lines, run = height - high + 1, (width - broad + 1) * rows
        above = _inside_out(grad).contiguous().view(lines, outputs, run)
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[1]:
            total = torch.bmm(above, _columns(wide, high).transpose(1, 2)).sum(0)
            of_weight = total.view(outputs, high, channels, broad).transpose(1, 2)
        if ctx.needs_input_grad[2]:
            of_bias = above.sum((0, 2))
        if ctx.needs_input_grad[0]:
            matrix = weight.transpose(1, 2).reshape(outputs, -1).t()
            of_wide = above.new_zeros(height, channels * broad, run)
            for line, own in enumerate(above):
                of_wide[line : line + high].view(-1, run).addmm_(matrix, own)
            of_image = above.new_zeros(height, channels, width * rows)
            shifted = of_wide.view(height, channels, broad, run)
            for shift in range(broad):
                of_image[:, :, shift * rows :][:, :, :run] += shifted[:, :, shift]
            tall, wide_by = ctx.padding
            inner = of_image.view(height, channels, width, rows)
            of_x = _outside_in(inner[tall : height - tall, :, wide_by : width - wide_by])
        return of_x, of_weight, of_bias, None


def _framed(image: Tensor, padding: tuple[int, int]) -> Tensor:
    """Lines and columns of zeros around an image, which is laid out in one piece."""
    tall, broad = padding
    if not (tall or broad):
        return image.contiguous()
    height, channels, width, rows = image.shape
    framed = image.new_zeros(height + 2 * tall, channels, width + 2 * broad, rows)
    framed[tall : tall + height, :, broad : broad + width] = image
    return framed


def _columns(wide: Tensor, high: int) -> Tensor:
    """(lines, high · channels · shifts, run): what each line of the result is made of, a view."""
    height, per_line, run = wide.shape
    return wide.as_strided(
        (height - high + 1, high * per_line, run), (per_line * run, run, 1), wide.storage_offset()
    )


def _plain_gradients(ctx: Any, grad: Tensor, x: Tensor, weight: Tensor) -> Any:
    """The gradients by operations of torch that have gradients themselves."""
    biases = [len(weight)] if ctx.needs_input_grad[2] else None
    found = torch.ops.aten.convolution_backward(
        grad, x, weight, biases, [1, 1], ctx.padding, [1, 1], False, [0, 0], 1,
        ctx.needs_input_grad[:3],
    )  # fmt: skip
    return *found, None


class _Pooling(Function):
    """The largest of two neighbours in a line, then of two lines; of equals the first, as torch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        image = _inside_out(x).contiguous()
        lines, places = len(image) // 2, image.shape[2] // 2
        pairs = image[: 2 * lines, :, : 2 * places]
        left, right = pairs.unflatten(2, (places, 2)).unbind(3)
        larger = torch.maximum(left, right)
        upper, lower = larger.unflatten(0, (lines, 2)).unbind(1)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(left.clone().ge_(right), upper.clone().ge_(lower))
            ctx.shape = image.shape
        return _outside_in(torch.maximum(upper, lower))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        is_left, is_upper = ctx.saved_tensors
        height, _, width, _ = ctx.shape
        above = _inside_out(grad)
        in_line = _parted(above, is_upper, 1).flatten(0, 1)
        found = _parted(in_line, is_left, 3).flatten(2, 3)
        if found.shape != ctx.shape:
            short = (0, 0, 0, width - found.shape[2], 0, 0, 0, height - found.shape[0])
            found = nn.functional.pad(found, short)
        return _outside_in(found)


def _parted(values: Tensor, is_first: Tensor, dim: int) -> Tensor:
    """Values where the first of two has them, and where the second has them, side by side."""
    first = values * is_first
    return torch.stack((first, values - first), dim)
