"""Random changes of training images, as DomainBed makes them, for a whole batch at once.

A crop of 0.7 to 1 of the area resized to the full size, a flip, jitter of brightness, contrast,
saturation and hue by up to 0.3 in a random order, and now and then no colours at all: what
``RandomResizedCrop``, ``RandomHorizontalFlip``, ``ColorJitter`` and ``RandomGrayscale`` of
torchvision do with an image (Gulrajani, Lopez-Paz: In Search of Lost Domain Generalization, ICLR
2021). Differences: crops are taken of images that were resized to a square before, and values are
floats throughout instead of bytes between the steps.

All functions take images ``(n, channels, height, width)`` as floats in [0, 1] and one number, or a
few, per image; an image's result depends on no other image of the batch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

if TYPE_CHECKING:
    from collections.abc import Callable

AREA = (0.7, 1.0)
RATIO = (3 / 4, 4 / 3)
ATTEMPTS = 10
"""A crop that does not fit into the image is drawn again so often; then the image stays whole."""

JITTER = 0.3
GREY_CHANCE = 0.1
LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in brightness (ITU-R 601-2)."""

COLOURS = 3
DRAWS = 2 * ATTEMPTS + 2 + 1 + 4 + 4 + 1
"""Random numbers that an image takes: its crop, flip, jitter, the order of it, and grey."""


def augment(images: Tensor, chance: Tensor) -> Tensor:
    """The images as chance ``(n, DRAWS)``, numbers in [0, 1), changes them."""
    crop, flip, factors, order, grey = chance.split((2 * ATTEMPTS + 2, 1, 4, 4, 1), dim=1)
    boxes = crop_boxes(crop, *images.shape[-2:])
    images = resized_crop(images, boxes, flip[:, 0] < 0.5)
    images = jitter(images, (2 * factors - 1) * JITTER, order.argsort(dim=1))
    return torch.where((grey < GREY_CHANCE)[..., None, None], in_grey(images), images)


def crop_boxes(chance: Tensor, height: int, width: int) -> Tensor:
    """Top, left, height and width ``(n, 4)`` of random crops: the first attempt that fits.

    The share of the area is uniform, the logarithm of the ratio of the sides as well.
    """
    n = len(chance)
    sizes, place = chance[:, :-2].reshape(n, 2, ATTEMPTS), chance[:, -2:]
    area = height * width * (AREA[0] + (AREA[1] - AREA[0]) * sizes[:, 0])
    low, high = map(math.log, RATIO)
    ratio = (low + (high - low) * sizes[:, 1]).exp()
    wide, tall = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (wide > 0) & (wide <= width) & (tall > 0) & (tall <= height)
    first = fits.to(torch.int8).argmax(dim=1, keepdim=True)
    found = fits.any(dim=1)
    w = torch.where(found, wide.gather(1, first)[:, 0], float(width))
    h = torch.where(found, tall.gather(1, first)[:, 0], float(height))
    top = (place[:, 0] * (height - h + 1)).floor()
    left = (place[:, 1] * (width - w + 1)).floor()
    return torch.stack([top, left, h, w], dim=1)


def resized_crop(images: Tensor, boxes: Tensor, flip: Tensor) -> Tensor:
    """The part of each image in its box, at the size of the image, mirrored where ``flip`` says so.

    Linear between the four nearest pixels of the box; a crop is never larger than the image, so
    there is nothing to smooth.
    """
    height, width = images.shape[-2:]
    top, left, h, w = boxes.to(images.dtype)[:, :, None].unbind(1)

    def sampled(start: Tensor, size: Tensor, count: int) -> Tensor:
        """Where ``count`` pixels of the result lie in the image, from 0."""
        middles = torch.arange(count, device=images.device, dtype=images.dtype) + 0.5
        inside = (middles * size / count - 0.5).clamp(min=0)
        return start + torch.minimum(inside, size - 1)

    y, x = sampled(top, h, height), sampled(left, w, width)
    x = torch.where(flip[:, None], x.flip(1), x)
    grid = torch.stack(
        torch.broadcast_tensors(
            ((2 * x + 1) / width - 1)[:, None, :], ((2 * y + 1) / height - 1)[:, :, None]
        ),
        dim=3,
    )
    return grid_sample(images, grid, padding_mode="border", align_corners=False)


def jitter(images: Tensor, changes: Tensor, order: Tensor) -> Tensor:
    """Brightness, contrast, saturation (times ``1 + change``) and hue (turned by ``change``).

    ``changes`` and ``order`` are ``(n, 4)``: which of the four an image goes through at each turn.
    """
    kinds: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
        brighten,
        change_contrast,
        saturate,
        turn_hue,
    )
    amounts = (changes + changes.new_tensor([1, 1, 1, 0])).to(images.dtype)
    result = images.clone()
    for turn in order.unbind(1):
        for number, change in enumerate(kinds):
            which = (turn == number).nonzero()[:, 0]
            if len(which):
                result[which] = change(result[which], amounts[which, number])
    return result


def brighten(images: Tensor, factor: Tensor) -> Tensor:
    """``f x``."""
    return _blend(images, torch.zeros_like(images), factor)


def change_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """``f x + (1 − f) m`` with the image's mean brightness ``m``."""
    return _blend(images, brightness(images).mean(dim=(1, 2, 3), keepdim=True), factor)


def saturate(images: Tensor, factor: Tensor) -> Tensor:
    """``f x + (1 − f) g`` with the image ``g`` in grey."""
    return _blend(images, brightness(images), factor)


def turn_hue(images: Tensor, turn: Tensor) -> Tensor:
    """Every pixel's hue turned by a share of the circle; grey images have none.

    With ``v`` the largest and ``c`` the range of red, green and blue, and hue ``h`` in sixths of
    the circle, a channel is ``v − c clip(min(k, 4 − k), 0, 1)``, ``k = (n + h) mod 6``, for
    ``n = 5, 3, 1``.
    """
    if images.shape[1] != COLOURS:
        return images
    red, green, blue = images.unbind(1)
    value = images.amax(dim=1)
    span = value - images.amin(dim=1)
    by = torch.where(span > 0, span, 1.0)
    hue = torch.where(
        value == red,
        (green - blue) / by,
        torch.where(value == green, 2 + (blue - red) / by, 4 + (red - green) / by),
    )
    hue = hue + 6 * turn[:, None, None]
    k = (images.new_tensor([5, 3, 1])[:, None, None] + hue[:, None]) % 6
    share = torch.minimum(k, 4 - k).clamp(0, 1)
    return value[:, None] - span[:, None] * share


def in_grey(images: Tensor) -> Tensor:
    """Every channel the brightness."""
    return brightness(images).expand_as(images)


def brightness(images: Tensor) -> Tensor:
    """One channel of brightness; images that are not in colour are that already."""
    if images.shape[1] != COLOURS:
        return images
    weights = images.new_tensor(LUMA)[:, None, None]
    return (images * weights).sum(dim=1, keepdim=True)


def _blend(images: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """``f x + (1 − f) o``, kept in [0, 1]."""
    f = share[:, None, None, None]
    return (f * images + (1 - f) * other).clamp(0, 1)
