"""Style-based generators, small enough to train on a CPU, and the critic they are trained against.

After Karras et al., "Analyzing and improving the image quality of StyleGAN" (CVPR 2020): a mapping network turns noise
z into a latent vector w, and w scales the maps before every convolution. Statistics of w then say what a population of
images looks like, which is what the method `latent` estimates. Images depend on their own w alone.
"""

import itertools
import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.models.generators.sides import layer_count, level_count, starting_sides

SLOPE = 0.2  # of the leaky ReLU
_MOST_WIDENING = 4  # maps at coarse levels, in multiples of those at the finest
_SAMPLES_OF_THE_AVERAGE = 10_000
_MAPPING_RATE = 0.01
_AT_ONCE = 500


class LatentGenerator(nn.Module, ABC):
    """What `latent` asks of a public generator: w from noise, images from w, and the average w.

    A subclass sets `size`, `channels` and `latent_size`, fills the buffer `w_average`, and has `map` and `forward`;
    `settings` names the attributes that rebuild it, beside `breadth` where that is not the size.
    """

    settings: ClassVar[tuple[str, ...]]
    size: int
    """The height of an image, and its breadth where that is None."""
    breadth: int | None = None
    channels: int
    latent_size: int
    w_average: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, breadth and channels of an image."""
        return self.size, self.breadth or self.size, self.channels

    @abstractmethod
    def map(self, z: Tensor) -> Tensor:
        """Latent vectors w (b, latent_size) from standard normal z of the same shape."""

    @abstractmethod
    def forward(self, w: Tensor) -> Tensor:
        """Images in [0, 1], (b, channels, height, breadth); differentiable in w."""

    def straighten(self, w: Tensor) -> Tensor:
        """Latents before the last leaky ReLU, where they are nearly Gaussian (Zhu et al. 2020, arXiv 2012.09036)."""
        return functional.leaky_relu(w / math.sqrt(2), 1 / SLOPE)

    def bend(self, straight: Tensor) -> Tensor:
        """What `straighten` undoes."""
        return active(straight)

    @torch.no_grad()
    def draw(self, count: int, coins: torch.Generator) -> Tensor:
        """`count` latent vectors of the generator's own distribution, on its device."""
        z = torch.randn(count, self.latent_size, generator=coins).to(self.w_average.device)
        return torch.cat([self.map(part) for part in torch.split(z, _AT_ONCE)])

    @torch.no_grad()
    def render(self, w: Tensor) -> Tensor:
        """8-bit images (b, channels, height, breadth) on the CPU, a few at a time."""
        parts = torch.split(w, _AT_ONCE)
        return torch.cat([(self(part) * 255).round().to(torch.uint8).cpu() for part in parts])

    def settle(self, coins: torch.Generator) -> None:
        """Take the average of w from samples, once the mapping is trained."""
        self.w_average.copy_(self.draw(_SAMPLES_OF_THE_AVERAGE, coins).mean(dim=0))


class LayeredGenerator(LatentGenerator):
    """One whose layers could each have a latent of their own (W+), and whose mapping can be followed by gradients."""

    @property
    def layers(self) -> int:
        """How many latents W+ has."""
        return layer_count(self.size, self.breadth)

    @abstractmethod
    def layered(self, w: Tensor) -> Tensor:
        """Images in [0, 1] of latents (b, layers, latent_size), one for each layer; differentiable in them."""

    def forward(self, w: Tensor) -> Tensor:
        """Images in [0, 1]; all layers see the same latent."""
        return self.layered(w[:, None].expand(-1, self.layers, -1))


class StyleGenerator(LayeredGenerator):
    """A small style-based generator.

    Args:
        size: height of the image, 8 to 256 pixels; what the doublings of a few pixels do not give is cut out.
        channels: colour channels.
        latent_size: length of z and of w.
        width: maps at the finest level; doubled at each coarser one, up to four times as many.
        mapping_layers: layers of the mapping network.
        breadth: of the image, where it is not square; at most four times the height, and as little.
    """

    settings = ("size", "channels", "latent_size", "width", "mapping_layers")

    def __init__(
        self,
        size: int,
        channels: int,
        latent_size: int = 64,
        width: int = 16,
        mapping_layers: int = 4,
        breadth: int | None = None,
    ) -> None:
        super().__init__()
        levels = level_count(size, breadth)
        if min(channels, latent_size, width, mapping_layers) < 1:
            raise InputError(
                "Expected channels, latent_size, width and mapping_layers of at least 1, "
                f"got {channels}, {latent_size}, {width} and {mapping_layers}."
            )
        self.size, self.channels, self.latent_size = size, channels, latent_size
        self.width, self.mapping_layers = width, mapping_layers
        self.breadth = None if breadth == size else breadth
        self.mapping = nn.ModuleList(
            EqualLinear(latent_size, latent_size, rate=_MAPPING_RATE) for _ in range(mapping_layers)
        )
        widths = widths_of(width, levels)
        self.start = nn.Parameter(torch.randn(widths[0], *starting_sides(size, breadth)))
        self.first = StyledConvolution(widths[0], widths[0], latent_size)
        self.levels = nn.ModuleList(
            _Level(before, after, channels, latent_size) for before, after in itertools.pairwise(widths)
        )
        self.register_buffer("w_average", torch.zeros(latent_size))

    def map(self, z: Tensor) -> Tensor:
        """Noise to latent vectors."""
        w = unit_power(z)
        for layer in self.mapping:
            w = active(layer(w))
        return w

    def layered(self, w: Tensor) -> Tensor:
        """Images in [0, 1] of a latent for each layer."""
        maps = self.start.expand(len(w), -1, -1, -1).contiguous(memory_format=torch.channels_last)
        maps = self.first(maps, w[:, 0])
        picture: Tensor | None = None
        for number, level in enumerate(self.levels):
            maps, layer = level(maps, w[:, 2 * number + 1 :])
            picture = layer if picture is None else doubled(picture) + layer
        assert picture is not None
        height, breadth, _ = self.shape
        return torch.sigmoid(2 * cut_out(picture, height, breadth))


class StyleCritic(nn.Module):
    """Residual blocks that halve the side, the spread within the batch as one more map, then one logit per image."""

    def __init__(self, size: int, channels: int, width: int = 16, breadth: int | None = None) -> None:
        super().__init__()
        levels, starts = level_count(size, breadth), starting_sides(size, breadth)
        widths = widths_of(width, levels)[::-1]
        missing = [start * 2**levels - side for start, side in zip(starts, (size, breadth or size), strict=True)]
        # Of the breadth before and after, then of the height, as torch pads.
        self.padding = tuple(part for rest in missing[::-1] for part in (rest // 2, rest - rest // 2))
        self.stem = EqualConvolution(channels, widths[0], 1)
        self.blocks = nn.ModuleList(_DownBlock(before, after) for before, after in itertools.pairwise(widths))
        self.last = EqualConvolution(widths[-1] + 1, widths[-1], 3)
        self.hidden = EqualLinear(widths[-1] * math.prod(starts), widths[-1])
        self.score = EqualLinear(widths[-1], 1)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (b,) of images in [0, 1]; images of one batch see each other's spread."""
        padded = 2 * images - 1
        if any(self.padding):
            padded = functional.pad(padded, self.padding, mode="replicate")
        maps = active(self.stem(padded.contiguous(memory_format=torch.channels_last)))
        for block in self.blocks:
            maps = block(maps)
        spread = (maps.var(dim=0, unbiased=False) + 1e-8).sqrt().mean()
        maps = torch.cat([maps, spread.expand(len(maps), 1, *maps.shape[2:])], dim=1)
        logits: Tensor = self.score(active(self.hidden(active(self.last(maps)).flatten(1))))[:, 0]
        return logits


class EqualLinear(nn.Module):
    """A linear map with weights stored at unit scale, so that Adam treats all layers alike (Karras et al. 2018)."""

    def __init__(self, inputs: int, outputs: int, *, rate: float = 1.0, bias: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / rate)
        self.bias = nn.Parameter(torch.full((outputs,), bias / rate))
        self.weight_gain, self.bias_gain = rate / math.sqrt(inputs), rate

    def forward(self, rows: Tensor) -> Tensor:
        """(b, inputs) to (b, outputs)."""
        return functional.linear(rows, self.weight * self.weight_gain, self.bias * self.bias_gain)


class EqualConvolution(nn.Module):
    """A convolution that keeps the side, with weights at unit scale."""

    def __init__(self, before: int, after: int, kernel: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(after, before, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(after)) if bias else None
        self.gain, self.padding = 1 / math.sqrt(before * kernel**2), kernel // 2

    def forward(self, maps: Tensor) -> Tensor:
        """(b, before, h, w) to (b, after, h, w)."""
        return functional.conv2d(maps, self.weight * self.gain, self.bias, padding=self.padding)


def unit_power(rows: Tensor) -> Tensor:
    """Rows scaled to a mean square of 1."""
    return rows * (rows.square().mean(dim=1, keepdim=True) + 1e-8).rsqrt()


def active(values: Tensor) -> Tensor:
    """Leaky ReLU, scaled so that variance stays."""
    return functional.leaky_relu(values, SLOPE) * math.sqrt(2)


def demodulation(weight: Tensor, styles: Tensor) -> Tensor:
    """(b, after): what brings the maps of a convolution of styled maps back to unit variance.

    Scaling maps before and after one shared convolution equals a kernel for each image, and is quicker on a CPU.
    """
    return (styles.square() @ weight.square().sum(dim=(2, 3)).T + 1e-8).rsqrt()


class StyledConvolution(nn.Module):
    """A convolution of maps that latents scale first."""

    def __init__(self, before: int, after: int, latent_size: int, *, kernel: int = 3, demodulated: bool = True) -> None:
        super().__init__()
        self.style = EqualLinear(latent_size, before, bias=1.0)
        self.convolution = EqualConvolution(before, after, kernel, bias=False)
        self.bias = nn.Parameter(torch.zeros(after))
        self.demodulated = demodulated

    def forward(self, maps: Tensor, w: Tensor) -> Tensor:
        """(b, before, h, w) and latents to (b, after, h, w)."""
        styles = self.style(w)
        out: Tensor = self.convolution(maps * styles[:, :, None, None])
        if not self.demodulated:
            return out + self.bias[:, None, None]
        scale = demodulation(self.convolution.weight * self.convolution.gain, styles)
        return active(out * scale[:, :, None, None] + self.bias[:, None, None])


class _Level(nn.Module):
    """Twice the side: two convolutions, and a layer of the picture that shares the next level's first latent."""

    def __init__(self, before: int, after: int, channels: int, latent_size: int) -> None:
        super().__init__()
        self.widen = StyledConvolution(before, after, latent_size)
        self.refine = StyledConvolution(after, after, latent_size)
        self.paint = StyledConvolution(after, channels, latent_size, kernel=1, demodulated=False)

    def forward(self, maps: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.refine(self.widen(doubled(maps), w[:, 0]), w[:, 1])
        return maps, self.paint(maps, w[:, 2])


class _DownBlock(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first = EqualConvolution(before, before, 3)
        self.second = EqualConvolution(before, after, 3)
        self.shortcut = EqualConvolution(before, after, 1, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        halved = functional.avg_pool2d(active(self.first(maps)), 2)
        shortcut: Tensor = self.shortcut(functional.avg_pool2d(maps, 2))
        return (active(self.second(halved)) + shortcut) / math.sqrt(2)


def widths_of(width: int, levels: int, most_widening: int = _MOST_WIDENING) -> list[int]:
    """Maps at each side, from the coarsest to the finest."""
    return [width * min(most_widening, 2 ** (levels - level)) for level in range(levels + 1)]


def doubled(maps: Tensor) -> Tensor:
    """Twice the side."""
    return functional.interpolate(maps, scale_factor=2, mode="bilinear", align_corners=False)


def cut_out(picture: Tensor, height: int, breadth: int) -> Tensor:
    """The middle of a picture that may be larger than the image."""
    above, before = ((side - wanted) // 2 for side, wanted in zip(picture.shape[2:], (height, breadth), strict=True))
    return picture[:, :, above : above + height, before : before + breadth]
