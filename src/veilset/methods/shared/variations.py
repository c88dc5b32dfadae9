"""Images in more forms: turned, cut into bands of brightness, laid over each other, cropped.

Public images for imgsyn and pldk, generated ones for dpaf, dpgan and sanitized_gan. A student learns
from its teacher where it has images to ask about. A public set covers little of the private one's ground, and its
variations much more: a coat seen through a narrow band of brightness is a few curved strokes. None of it is private.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from veilset.methods.shared.choices import Variation

# Of the images, this share stays as it is, and this share of the others is an outline.
_UNCHANGED, _OUTLINES = 0.15, 0.25
_SMALLEST, _LARGEST = 0.5, 1.3
_SHIFT, _SHEAR = 0.4, 0.3
# Crops: the smallest share of the area, how far from square, how far colours and contrast change, how many are whole.
_LEAST_AREA, _ASPECT, _COLOUR, _WHOLE = 0.3, 4 / 3, 0.2, 1 / 3


def vary(images: Tensor, kind: Variation, generator: torch.Generator) -> Tensor:
    """A changed copy of each image in [0, 1], (b, C, H, W)."""
    if kind == "none":
        return images
    if kind == "crops":
        return crops(images, (images.shape[2], images.shape[3]), generator)
    turned = _turn(images, generator)
    if kind == "turned":
        return turned
    changed = torch.where(_coins(images, generator) < _OUTLINES, _outline(turned, generator), _band(turned, generator))
    changed = _overlay(changed, generator)
    return torch.where(_coins(images, generator) < _UNCHANGED, images, changed)


def crops(images: Tensor, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """A part of each image, or all of it, as (b, C, height, width): mirrored or not, and recoloured.

    They stay photographs, so that a teacher that knows photographs is asked about what it knows.
    """
    return _recolour(_cut_out(images, shape, generator), generator)


def _cut_out(images: Tensor, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """A rectangle of each image, of any area from the smallest on, brought to `shape`; of some the whole."""
    height, width = shape
    area, ratio, right, down, mirror, whole = torch.rand(6, len(images), generator=generator)
    area = torch.where(whole < _WHOLE, 1.0, _LEAST_AREA + (1 - _LEAST_AREA) * area)
    ratio = torch.where(whole < _WHOLE, 1.0, torch.exp((2 * ratio - 1) * math.log(_ASPECT)))
    wide, tall = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    none = torch.zeros_like(wide)
    first = torch.stack([torch.where(mirror < 0.5, -wide, wide), none, (2 * right - 1) * (1 - wide)], dim=1)
    second = torch.stack([none, tall, (2 * down - 1) * (1 - tall)], dim=1)
    # Of larger images four points make a pixel, so that nothing between the points is lost.
    points = 2 if images.shape[2] > height else 1
    size = [len(images), images.shape[1], points * height, points * width]
    grid = functional.affine_grid(torch.stack([first, second], dim=1), size, align_corners=False)
    cut = functional.grid_sample(images, grid.to(images), padding_mode="border", align_corners=False)
    return functional.avg_pool2d(cut, points) if points > 1 else cut


def _recolour(images: Tensor, generator: torch.Generator) -> Tensor:
    """Another contrast about each colour's mean, and another strength of each colour."""
    contrast = 1 + _COLOUR * (2 * _coins(images, generator) - 1)
    strength = 1 + _COLOUR * (2 * torch.rand(*images.shape[:2], 1, 1, generator=generator) - 1)
    mean = images.mean(dim=(2, 3), keepdim=True)
    return (torch.lerp(mean, images, contrast.to(images)) * strength.to(images)).clamp_(0, 1)


def _coins(images: Tensor, generator: torch.Generator) -> Tensor:
    """(b, 1, 1, 1) uniform in [0, 1)."""
    return torch.rand(len(images), 1, 1, 1, generator=generator)


def _turn(images: Tensor, generator: torch.Generator) -> Tensor:
    """Any rotation, mirrored or not, smaller or larger, slanted and shifted; what comes in from outside is black."""
    draw = torch.rand(7, len(images), generator=generator)
    angle = draw[0] * 2 * math.pi
    size = torch.exp(math.log(_SMALLEST) + draw[1] * math.log(_LARGEST / _SMALLEST))
    across, along = 1 / size, 1 / (size * torch.exp((draw[2] - 0.5) * 0.4))
    mirror = torch.where(draw[3] < 0.5, -1.0, 1.0)
    slant, right, down = (2 * draw[4] - 1) * _SHEAR, (2 * draw[5] - 1) * _SHIFT, (2 * draw[6] - 1) * _SHIFT
    cosine, sine = angle.cos(), angle.sin()
    first = torch.stack([cosine * across * mirror, slant - sine * across, right], dim=1)
    second = torch.stack([sine * along * mirror, cosine * along, down], dim=1)
    grid = functional.affine_grid(torch.stack([first, second], dim=1), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid.to(images), align_corners=False)


def _band(images: Tensor, generator: torch.Generator) -> Tensor:
    """Brightness above a level, brightness near a level, or all of it; then stretched."""
    level, width, choice = _coins(images, generator), 0.08 + 0.5 * _coins(images, generator), _coins(images, generator)
    above = ((images - 0.8 * level) / width).clamp(0, 1)
    near = (1 - (images - level).abs() / width).clamp(0, 1)
    chosen = torch.where(choice < 0.35, above, torch.where(choice < 0.7, near, images))
    brightest = chosen.amax(dim=(1, 2, 3), keepdim=True).clamp_min(1e-3)
    return chosen / brightest * (0.6 + 0.4 * _coins(images, generator))


def _outline(images: Tensor, generator: torch.Generator) -> Tensor:
    """The length of the brightness' gradient, made brighter."""
    across = functional.pad(images[..., 1:] - images[..., :-1], (0, 1))
    down = functional.pad(images[..., 1:, :] - images[..., :-1, :], (0, 0, 0, 1))
    return ((across.square() + down.square()).sqrt() * (1.5 + 3 * _coins(images, generator))).clamp(0, 1)


def _overlay(images: Tensor, generator: torch.Generator) -> Tensor:
    """Two in five get another image laid over them, one in ten is cut by another."""
    other = images[torch.randperm(len(images), generator=generator)]
    choice = _coins(images, generator)
    both = torch.where(choice < 0.4, torch.maximum(images, other), images)
    return torch.where((choice >= 0.4) & (choice < 0.5), 1.5 * images * other, both).clamp(0, 1)
