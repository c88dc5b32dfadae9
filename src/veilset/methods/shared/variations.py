"""Public images in many more forms (imgsyn, pldk): turned, cut into bands of brightness, laid over each other.

A student learns from its teacher where it has images to ask about. A public set covers little of the private one's
ground, and its variations much more: a coat seen through a narrow band of brightness is a few curved strokes. All of
it is public.
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


def vary(images: Tensor, kind: Variation, generator: torch.Generator) -> Tensor:
    """A changed copy of each image in [0, 1], (b, C, H, W)."""
    if kind == "none":
        return images
    turned = _turn(images, generator)
    if kind == "turned":
        return turned
    changed = torch.where(_coins(images, generator) < _OUTLINES, _outline(turned, generator), _band(turned, generator))
    changed = _overlay(changed, generator)
    return torch.where(_coins(images, generator) < _UNCHANGED, images, changed)


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
