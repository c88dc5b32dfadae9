"""Augmentation of a whole batch at once, from its own random stream or from numbers that each image brings.

Inside a private step a stream would be a leak: one image more, and every other image would get other numbers. There
each image comes with its own uniform numbers (`augment_width` says how many), drawn by the session.

The images are floats in [0, 1], (batch, channels, height, width); so are the results. Flips are off unless asked for:
a mirrored 2 or left lung is another thing.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from veilset.core.settings import Settings, setting


class AugmentConfig(Settings):
    """How far a training image may stray. Every zero switches its part off."""

    shift: float = setting(0.06, "Largest shift, as a share of the image's side.", least=0, most=1)
    rotation: float = setting(5.0, "Largest rotation in degrees.", least=0, most=180)
    scale: float = setting(0.05, "Largest relative change of size.", least=0, most=1)
    shear: float = setting(0.05, "Largest shear, as a share of the side.", least=0, most=1)
    erase: float = setting(0.1, "Probability that a rectangle is replaced by a random grey.", least=0, most=1)
    erase_area: float = setting(0.15, "Largest area of that rectangle, as a share of the image.", least=0, most=1)
    contrast: float = setting(0.2, "Largest relative change of contrast.", least=0, most=1)
    brightness: float = setting(0.05, "Largest change of brightness.", least=0, most=1)
    noise: float = setting(
        0.05, "Largest standard deviation of added Gaussian noise; each image draws its own.", least=0, most=1
    )
    flip: bool = setting(False, "Mirror half of the images left to right.")


MILD = AugmentConfig()
NO_AUGMENTATION = AugmentConfig(
    shift=0.0, rotation=0.0, scale=0.0, shear=0.0, erase=0.0, contrast=0.0, brightness=0.0, noise=0.0
)


class _Stream:
    """Numbers from a generator, in the order of the images."""

    def __init__(self, generator: torch.Generator, images: Tensor) -> None:
        self._generator, self._count, self._device = generator, len(images), images.device

    def uniforms(self, width: int) -> Tensor:
        """(width, count) in [0, 1)."""
        return torch.rand(width, self._count, generator=self._generator, device=self._device)

    def normals(self, shape: torch.Size) -> Tensor:
        """One for each pixel."""
        return torch.randn(shape, generator=self._generator, device=self._device)


class _Own:
    """Numbers that the images brought: (count, width) uniform ones, taken column after column."""

    def __init__(self, numbers: Tensor) -> None:
        self._numbers, self._next = numbers, 0

    def uniforms(self, width: int) -> Tensor:
        """(width, count) in [0, 1]."""
        return self._take(width).t().float()

    def normals(self, shape: torch.Size) -> Tensor:
        """One for each pixel, by the inverse of the normal distribution function."""
        width = math.prod(shape[1:])
        found: Tensor = torch.special.ndtri(self._take(width).double().clamp(2.0**-54, 1 - 2.0**-53))
        return found.float().view(shape)

    def _take(self, width: int) -> Tensor:
        self._next += width
        return self._numbers[:, self._next - width : self._next]


def augment_width(config: AugmentConfig, shape: tuple[int, ...]) -> int:
    """How many uniform numbers an image of this shape (channels, height, width) has to bring."""
    parts = (
        (1, config.flip),
        (5, config.shift or config.rotation or config.scale or config.shear),
        (2, config.contrast or config.brightness),
        (1 + math.prod(shape), config.noise),
        (6, config.erase and config.erase_area),
    )
    return sum(width for width, used in parts if used)


def augment(images: Tensor, config: AugmentConfig, coins: torch.Generator | Tensor) -> Tensor:
    """A changed copy of each image.

    `coins` is a generator on the images' device or, inside a private step, a tensor (count, `augment_width`) of numbers
    in [0, 1) that belong to the images.
    """
    drawn = _Stream(coins, images) if isinstance(coins, torch.Generator) else _Own(coins)
    if config.flip:
        images = torch.where(drawn.uniforms(1).reshape(-1, 1, 1, 1) < 0.5, images.flip(3), images)
    if config.shift or config.rotation or config.scale or config.shear:
        images = _affine(images, config, drawn)
    if config.contrast or config.brightness:
        images = _contrast(images, config, drawn)
    if config.noise:
        deviation = config.noise * drawn.uniforms(1).reshape(-1, 1, 1, 1)
        images = torch.addcmul(images, drawn.normals(images.shape), deviation).clamp_(0, 1)
    if config.erase and config.erase_area:
        images = _erase(images, config, drawn)
    return images


def _spread(most: float, drawn: _Stream | _Own) -> Tensor:
    """(count,) uniform in [-most, most]."""
    return (2 * drawn.uniforms(1)[0] - 1) * most


def _affine(images: Tensor, config: AugmentConfig, drawn: _Stream | _Own) -> Tensor:
    """Rotate, scale, shear and shift; what enters from outside repeats the edge pixel."""
    height, width = images.shape[2:]
    angle = _spread(math.radians(config.rotation), drawn)
    zoom = 1 + _spread(config.scale, drawn)
    shear = _spread(config.shear, drawn)
    aspect = height / width
    cosine, sine = torch.cos(angle) * zoom, torch.sin(angle) * zoom
    # grid_sample counts from -1 to 1, so a share of the side is twice as much there.
    down, right = (_spread(2 * config.shift, drawn) for _ in range(2))
    rows = torch.stack(
        [
            torch.stack([cosine, (shear * cosine - sine) * aspect, right], dim=1),
            torch.stack([sine / aspect, shear * sine + cosine, down], dim=1),
        ],
        dim=1,
    )
    grid = functional.affine_grid(rows, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _contrast(images: Tensor, config: AugmentConfig, drawn: _Stream | _Own) -> Tensor:
    """Stretch each image about its own mean and shift its brightness."""
    factor = (1 + _spread(config.contrast, drawn)).reshape(-1, 1, 1, 1)
    offset = _spread(config.brightness, drawn).reshape(-1, 1, 1, 1)
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    return torch.addcmul(mean * (1 - factor) + offset, images, factor).clamp_(0, 1)


def _erase(images: Tensor, config: AugmentConfig, drawn: _Stream | _Own) -> Tensor:
    """Random erasing (Zhong et al., 2020): a grey rectangle over some of the images."""
    height, width = images.shape[2:]
    draw = drawn.uniforms(6).reshape(6, -1, 1, 1, 1)
    area = draw[0] * config.erase_area
    ratio = torch.exp((2 * draw[1] - 1) * math.log(3.0))  # between 1:3 and 3:1
    tall, wide = (area * ratio).sqrt().clamp(max=1) * height, (area / ratio).sqrt().clamp(max=1) * width
    top, left = draw[2] * (height - tall), draw[3] * (width - wide)
    y = torch.arange(height, device=images.device).reshape(1, 1, -1, 1) + 0.5
    x = torch.arange(width, device=images.device).reshape(1, 1, 1, -1) + 0.5
    inside = (y > top) & (y < top + tall) & (x > left) & (x < left + wide) & (draw[4] < config.erase)
    return torch.where(inside, draw[5], images)
