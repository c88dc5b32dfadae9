"""Conditional generators: a latent vector and a class in, an image out.

Nothing in them mixes records, so an image depends on its own latent and class alone. `ConditionalGenerator` is made for
methods in which every gradient step also pays for the features of the images, on a CPU: most of its weights are in the
first linear map, and the convolutions that follow are few, narrow and transposed; `SmoothGenerator` enlarges its
images. The other two have the forms that are usual in adversarial training: `DCGANGenerator` (Radford et al. 2016), a
stack of transposed convolutions, and `ResNetGenerator` (Gulrajani et al. 2017, Miyato et al. 2018), residual blocks
whose norms are scaled by the class.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.core.randomness import derive_seed
from veilset.core.registry import Registry
from veilset.models.descriptions import described
from veilset.models.norms import group_count, halvings
from veilset.models.stored import built_to_fit, sizes_of

SETTINGS = ("size", "channels", "classes", "latent_size", "width")

GENERATORS: Registry[Callable[..., nn.Module]] = Registry(
    "generator",
    {
        "modulated": "veilset.models.generators.conditional:ConditionalGenerator",
        "smooth": "veilset.models.generators.conditional:SmoothGenerator",
        "dcgan": "veilset.models.generators.conditional:DCGANGenerator",
        "resnet": "veilset.models.generators.conditional:ResNetGenerator",
    },
)

_SMALLEST_SIDE = 16
_LARGEST_SIDE = 256
# Sides up to this are reached from size/4, larger ones from eight pixels: the linear map must not grow without bound.
_LARGEST_SIDE_OF_TWO_STAGES = 40
_FIRST_SIDE = 8
_FEWEST_MAPS = 4

# The logits of the smoothed picture are multiplied by this, so that edges can stay sharp in spite of the smoothing.
_LOGIT_GAIN = 4.0


class ConditionalGenerator(nn.Module):
    """Images of one class from latent vectors.

    Args:
        size: side of the square image, 16 to 256 pixels.
        channels: colour channels of the image.
        classes: number of classes.
        latent_size: length of the latent vector, drawn from a standard normal.
        width: feature maps at the smallest resolution; halved at each stage. A multiple of 16.
    """

    def __init__(self, size: int, channels: int, classes: int, latent_size: int = 64, width: int = 64) -> None:
        super().__init__()
        _check(size, channels, classes, latent_size, width)
        self.size, self.channels, self.classes, self.latent_size, self.width = (
            size,
            channels,
            classes,
            latent_size,
            width,
        )
        stages = 2 if size <= _LARGEST_SIDE_OF_TWO_STAGES else math.ceil(math.log2(size / _FIRST_SIDE))
        self.start = math.ceil(size / 2**stages)
        widths = [max(_FEWEST_MAPS, width // 2**stage) for stage in range(stages)]
        self.class_vectors = nn.Parameter(torch.randn(classes, latent_size))
        self.first = nn.Linear(2 * latent_size, width * self.start**2)
        self.modulations = nn.ModuleList(nn.Linear(2 * latent_size, 2 * count) for count in widths)
        self.stages = nn.ModuleList(
            nn.ConvTranspose2d(count, after, 4, stride=2, padding=1)
            for count, after in zip(widths, [*widths[1:], channels], strict=True)
        )
        for modulation in self.modulations:
            assert isinstance(modulation, nn.Linear)
            nn.init.normal_(modulation.weight, std=0.02)
            nn.init.zeros_(modulation.bias)
        binomial = torch.tensor([1.0, 2.0, 1.0]) / 4
        smoothing = (binomial[:, None] * binomial).expand(channels, 1, 3, 3).clone()
        self.register_buffer("smoothing", smoothing, persistent=False)

    def forward(self, latents: Tensor, classes: Tensor) -> Tensor:
        """Images in [0, 1], (batch, channels, size, size).

        Args:
            latents: (batch, latent_size).
            classes: (batch,) class numbers, or (batch, classes) weights for a picture between classes.
        """
        code = torch.cat([latents, _looked_up(self.class_vectors, classes)], dim=1)
        maps = self.first(code).view(-1, self.width, self.start, self.start)
        maps = maps.contiguous(memory_format=torch.channels_last)  # the faster layout on a CPU
        for modulation, stage in zip(self.modulations, self.stages, strict=True):
            scale, shift = modulation(code)[:, :, None, None].chunk(2, dim=1)
            maps = stage(functional.relu(functional.group_norm(maps, 4) * (1 + scale) + shift))
        # Smoothing the logits removes the checkerboard of transposed convolutions, which features of a low resolution
        # cannot see and a classifier can.
        padded = functional.pad(maps, (1, 1, 1, 1), mode="replicate")
        logits = functional.conv2d(padded, self.get_buffer("smoothing"), groups=self.channels)
        return torch.sigmoid(_LOGIT_GAIN * _cut(logits, self.size))


class SmoothGenerator(nn.Module):
    """A small `ConditionalGenerator` whose images are enlarged: nothing in them is finer than a critic can see.

    Where few private images mean coarse and noisy answers, the fine patterns of a larger generator are never told off.
    The arguments are those of `ConditionalGenerator`.
    """

    def __init__(self, size: int, channels: int, classes: int, latent_size: int = 64, width: int = 64) -> None:
        super().__init__()
        _check(size, channels, classes, latent_size, width)
        self.size, self.channels, self.classes = size, channels, classes
        self.latent_size, self.width = latent_size, width
        self.small = ConditionalGenerator(_SMALLEST_SIDE, channels, classes, latent_size, width)

    def forward(self, latents: Tensor, classes: Tensor) -> Tensor:
        """Images in [0, 1], (batch, channels, size, size); arguments as in `ConditionalGenerator`."""
        images = functional.interpolate(self.small(latents, classes), (self.size, self.size), mode="bicubic")
        return images.clamp(0, 1)


class DCGANGenerator(nn.Module):
    """Transposed convolutions, each followed by GroupNorm and ReLU; the class joins the latent vector.

    The arguments are those of `ConditionalGenerator`; `width` is halved at each stage, down to 16.
    """

    def __init__(self, size: int, channels: int, classes: int, latent_size: int = 64, width: int = 256) -> None:
        super().__init__()
        _check(size, channels, classes, latent_size, width)
        self.size, self.channels, self.classes = size, channels, classes
        self.latent_size, self.width = latent_size, width
        self.start, widths = _stages(size, width)
        self.class_vectors = nn.Parameter(torch.randn(classes, latent_size))
        self.first = nn.Linear(2 * latent_size, width * self.start**2)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.GroupNorm(group_count(before), before), nn.ReLU()]
            layers.append(nn.ConvTranspose2d(before, after, 4, stride=2, padding=1))
        layers += [nn.GroupNorm(group_count(widths[-1]), widths[-1]), nn.ReLU()]
        self.stages = nn.Sequential(*layers, nn.Conv2d(widths[-1], channels, 3, padding=1))

    def forward(self, latents: Tensor, classes: Tensor) -> Tensor:
        """Images in [0, 1], (batch, channels, size, size); arguments as in `ConditionalGenerator`."""
        code = torch.cat([latents, _looked_up(self.class_vectors, classes)], dim=1)
        maps = self.first(code).view(-1, self.width, self.start, self.start)
        return torch.sigmoid(_cut(self.stages(maps), self.size))


class ResNetGenerator(nn.Module):
    """Residual blocks that double the side; every class has scales and shifts of its own in every norm.

    The arguments are those of `ConditionalGenerator`; `width` is halved at each stage, down to 16.
    """

    def __init__(self, size: int, channels: int, classes: int, latent_size: int = 64, width: int = 128) -> None:
        super().__init__()
        _check(size, channels, classes, latent_size, width)
        self.size, self.channels, self.classes = size, channels, classes
        self.latent_size, self.width = latent_size, width
        self.start, widths = _stages(size, width)
        self.first = nn.Linear(latent_size, width * self.start**2)
        self.blocks = nn.ModuleList(_UpBlock(before, after, classes) for before, after in itertools.pairwise(widths))
        self.norm = _ClassNorm(widths[-1], classes)
        self.last = nn.Conv2d(widths[-1], channels, 3, padding=1)

    def forward(self, latents: Tensor, classes: Tensor) -> Tensor:
        """Images in [0, 1], (batch, channels, size, size); arguments as in `ConditionalGenerator`."""
        maps = self.first(latents).view(-1, self.width, self.start, self.start)
        for block in self.blocks:
            maps = block(maps, classes)
        return torch.sigmoid(_cut(self.last(functional.relu(self.norm(maps, classes))), self.size))


class _UpBlock(nn.Module):
    def __init__(self, before: int, after: int, classes: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = _ClassNorm(before, classes), _ClassNorm(after, classes)
        self.convolution1 = nn.Conv2d(before, after, 3, padding=1)
        self.convolution2 = nn.Conv2d(after, after, 3, padding=1)
        self.shortcut = nn.Conv2d(before, after, 1, bias=False)

    def forward(self, maps: Tensor, classes: Tensor) -> Tensor:
        inner = self.convolution1(_doubled(functional.relu(self.norm1(maps, classes))))
        inner = self.convolution2(functional.relu(self.norm2(inner, classes)))
        doubled: Tensor = inner + _doubled(self.shortcut(maps))
        return doubled


class _ClassNorm(nn.Module):
    """GroupNorm whose scale and shift are the class's."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.groups = group_count(width)
        self.scales = nn.Parameter(1 + 0.02 * torch.randn(classes, width))
        self.shifts = nn.Parameter(0.02 * torch.randn(classes, width))

    def forward(self, maps: Tensor, classes: Tensor) -> Tensor:
        scale, shift = (_looked_up(table, classes)[:, :, None, None] for table in (self.scales, self.shifts))
        return functional.group_norm(maps, self.groups) * scale + shift


def build_generator(
    name: str,
    *,
    size: int,
    channels: int,
    classes: int,
    latent_size: int = 64,
    width: int | None = None,
    seed: int = 0,
) -> nn.Module:
    """The generator called `name` in `GENERATORS`, its first weights drawn from `seed`; no width is its default."""
    builder = GENERATORS.get(name)
    wanted = {} if width is None else {"width": width}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "generator"))
        return builder(size=size, channels=channels, classes=classes, latent_size=latent_size, **wanted)


def description_of(generator: nn.Module) -> dict[str, Any]:
    """JSON-ready data that rebuilds a generator of this module without its weights."""
    network = next(name for name, known in _published().items() if type(generator) is known)
    return described(network, **{name: getattr(generator, name) for name in SETTINGS})


def rebuild_generator(description: Mapping[str, Any], weights: Mapping[str, Tensor]) -> nn.Module:
    """The generator of a stored description and its weights, ready to use. Only those of this module are built."""
    try:
        kind, sizes = _published()[description["network"]], sizes_of(description, SETTINGS)
        return built_to_fit(lambda: kind(**sizes), weights)
    except (KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InputError(f"Not a generator and its weights: {type(error).__name__}: {error}") from error


def _published() -> dict[str, Callable[..., nn.Module]]:
    """The generators by the names of their descriptions."""
    return {f"{name}_generator": GENERATORS.get(name) for name in GENERATORS}


def _check(size: int, channels: int, classes: int, latent_size: int, width: int) -> None:
    if not _SMALLEST_SIDE <= size <= _LARGEST_SIDE:
        raise InputError(
            f"Expected a size of {_SMALLEST_SIDE} to {_LARGEST_SIDE} pixels, got {size}. Resize the images."
        )
    if min(channels, classes, latent_size) < 1:
        raise InputError(
            f"Expected channels, classes and latent_size of at least 1, got {channels}, {classes}, {latent_size}."
        )
    if width < 16 or width % 16:
        raise InputError(f"Expected width to be a multiple of 16, got {width}.")


def _stages(size: int, width: int) -> tuple[int, list[int]]:
    """The side to start from, at least 4, and the widths from there up to the full side."""
    count = halvings(size, most=max(4, math.ceil(math.log2(size / _FIRST_SIDE))), least_side=4)
    return math.ceil(size / 2**count), [max(16, width // 2**stage) for stage in range(count + 1)]


def _looked_up(table: Tensor, classes: Tensor) -> Tensor:
    """Rows of a table by class numbers (b,), or mixed by weights (b, classes)."""
    return table[classes] if classes.ndim == 1 else classes @ table


def _doubled(maps: Tensor) -> Tensor:
    return functional.interpolate(maps, scale_factor=2, mode="nearest")


def _cut(maps: Tensor, size: int) -> Tensor:
    """The middle of maps that may be a few pixels too large."""
    margin = (maps.shape[-1] - size) // 2
    inside = slice(margin, margin + size)
    return maps[:, :, inside, inside]
