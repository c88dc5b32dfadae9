"""Augmentation of a whole batch at once, from its own random stream.

The images are floats in [0, 1], (batch, channels, height, width); so are the results. Flips are off unless asked for:
a mirrored 2 or left lung is another thing.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from veilset.core.errors import InputError


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """How far a training image may stray. Every zero switches its part off.

    Args:
        shift: largest shift, as a share of the image's side.
        rotation: largest rotation in degrees.
        scale: largest relative change of size.
        shear: largest shear, as a share of the side.
        erase: probability that a rectangle is replaced by a random grey.
        erase_area: largest area of that rectangle, as a share of the image.
        contrast: largest relative change of contrast.
        brightness: largest change of brightness.
        noise: largest standard deviation of added Gaussian noise; each image draws its own.
        flip: mirror half of the images left to right.
    """

    shift: float = 0.06
    rotation: float = 5.0
    scale: float = 0.05
    shear: float = 0.05
    erase: float = 0.1
    erase_area: float = 0.15
    contrast: float = 0.2
    brightness: float = 0.05
    noise: float = 0.05
    flip: bool = False

    def __post_init__(self) -> None:
        for name in ("shift", "scale", "shear", "erase", "erase_area", "contrast", "brightness", "noise"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"Expected {name} between 0 and 1, got {getattr(self, name)}.")
        if not 0 <= self.rotation <= 180:
            raise InputError(f"Expected rotation between 0 and 180 degrees, got {self.rotation}.")


MILD = AugmentConfig()
NO_AUGMENTATION = AugmentConfig(
    shift=0.0, rotation=0.0, scale=0.0, shear=0.0, erase=0.0, contrast=0.0, brightness=0.0, noise=0.0
)


def augment(images: Tensor, config: AugmentConfig, generator: torch.Generator) -> Tensor:
    """A changed copy of each image; the generator must live on the images' device."""
    if config.flip:
        mirrored = torch.rand(len(images), 1, 1, 1, generator=generator, device=images.device) < 0.5
        images = torch.where(mirrored, images.flip(3), images)
    if config.shift or config.rotation or config.scale or config.shear:
        images = _affine(images, config, generator)
    if config.contrast or config.brightness:
        images = _contrast(images, config, generator)
    if config.noise:
        deviation = config.noise * torch.rand(len(images), 1, 1, 1, generator=generator, device=images.device)
        noise = torch.randn(images.shape, generator=generator, device=images.device)
        images = torch.addcmul(images, noise, deviation).clamp_(0, 1)
    if config.erase and config.erase_area:
        images = _erase(images, config, generator)
    return images


def _spread(count: int, most: float, like: Tensor, generator: torch.Generator) -> Tensor:
    """(count,) uniform in [-most, most]."""
    return (2 * torch.rand(count, generator=generator, device=like.device) - 1) * most


def _affine(images: Tensor, config: AugmentConfig, generator: torch.Generator) -> Tensor:
    """Rotate, scale, shear and shift; what enters from outside repeats the edge pixel."""
    count, _, height, width = images.shape
    angle = _spread(count, math.radians(config.rotation), images, generator)
    zoom = 1 + _spread(count, config.scale, images, generator)
    shear = _spread(count, config.shear, images, generator)
    aspect = height / width
    cosine, sine = torch.cos(angle) * zoom, torch.sin(angle) * zoom
    # grid_sample counts from -1 to 1, so a share of the side is twice as much there.
    down, right = (_spread(count, 2 * config.shift, images, generator) for _ in range(2))
    rows = torch.stack(
        [
            torch.stack([cosine, (shear * cosine - sine) * aspect, right], dim=1),
            torch.stack([sine / aspect, shear * sine + cosine, down], dim=1),
        ],
        dim=1,
    )
    grid = functional.affine_grid(rows, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _contrast(images: Tensor, config: AugmentConfig, generator: torch.Generator) -> Tensor:
    """Stretch each image about its own mean and shift its brightness."""
    factor = (1 + _spread(len(images), config.contrast, images, generator)).reshape(-1, 1, 1, 1)
    offset = _spread(len(images), config.brightness, images, generator).reshape(-1, 1, 1, 1)
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    return torch.addcmul(mean * (1 - factor) + offset, images, factor).clamp_(0, 1)


def _erase(images: Tensor, config: AugmentConfig, generator: torch.Generator) -> Tensor:
    """Random erasing (Zhong et al., 2020): a grey rectangle over some of the images."""
    count, _, height, width = images.shape
    draw = torch.rand(6, count, 1, 1, 1, generator=generator, device=images.device)
    area = draw[0] * config.erase_area
    ratio = torch.exp((2 * draw[1] - 1) * math.log(3.0))  # between 1:3 and 3:1
    tall, wide = (area * ratio).sqrt().clamp(max=1) * height, (area / ratio).sqrt().clamp(max=1) * width
    top, left = draw[2] * (height - tall), draw[3] * (width - wide)
    y = torch.arange(height, device=images.device).reshape(1, 1, -1, 1) + 0.5
    x = torch.arange(width, device=images.device).reshape(1, 1, 1, -1) + 0.5
    inside = (y > top) & (y < top + tall) & (x > left) & (x < left + wide) & (draw[4] < config.erase)
    return torch.where(inside, draw[5], images)
