"""The generator of StyleGAN2 as NVIDIA published it for PyTorch, for weights that were converted from there.

Karras et al., "Analyzing and improving the image quality of StyleGAN" (CVPR 2020); names of weights, gains and padding
are those of github.com/NVlabs/stylegan2-ada-pytorch, so a converted file loads name by name. Written anew, without its
CUDA kernels: kernels are applied to styled maps, which equals styled kernels. Noise inputs are the stored constants, so
an image depends on w alone.
"""

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.models.generators.style import EqualLinear, LayeredGenerator, active, demodulation, unit_power

_FILTER = (1.0, 3.0, 3.0, 1.0)


class StyleGan2(LayeredGenerator):
    """StyleGAN2 without class labels.

    Args:
        size: side of the image, a power of two from 8 to 1024.
        channels: colour channels.
        latent_size: length of z and w.
        channel_base: maps at side r are channel_base / r ...
        channel_max: ... and at most so many.
        mapping_layers: layers of the mapping network.
        clamp: bound on maps before the next layer, 0 for none; NVIDIA sets 256 for half precision.
    """

    settings = ("size", "channels", "latent_size", "channel_base", "channel_max", "mapping_layers", "clamp")

    def __init__(
        self,
        size: int,
        channels: int,
        latent_size: int = 512,
        channel_base: int = 16_384,
        channel_max: int = 512,
        mapping_layers: int = 8,
        clamp: int = 0,
    ) -> None:
        super().__init__()
        if not 8 <= size <= 1024 or size & (size - 1):
            raise InputError(f"Expected a size that is a power of two from 8 to 1024, got {size}.")
        if min(channels, latent_size, channel_max, mapping_layers) < 1 or channel_base < size or clamp < 0:
            raise InputError("Expected positive settings, channel_base of at least the size, and clamp >= 0.")
        self.size, self.channels, self.latent_size = size, channels, latent_size
        self.channel_base, self.channel_max = channel_base, channel_max
        self.mapping_layers, self.clamp = mapping_layers, clamp
        self.mapping = _Mapping(latent_size, mapping_layers)
        sides = [2**power for power in range(2, int(math.log2(size)) + 1)]
        widths = [min(channel_base // side, channel_max) for side in sides]
        self.synthesis = nn.ModuleDict()
        for number, (side, width) in enumerate(zip(sides, widths, strict=True)):
            before = widths[number - 1] if number else 0
            self.synthesis[f"b{side}"] = _Block(before, width, side, channels, latent_size, clamp)

    @property
    def w_average(self) -> Tensor:  # type: ignore[override]  # NVIDIA keeps it in the mapping network
        """The mean of w."""
        return self.mapping.w_avg

    def map(self, z: Tensor) -> Tensor:
        """Noise to latent vectors."""
        w: Tensor = self.mapping(z)
        return w

    def layered(self, w: Tensor) -> Tensor:
        """Images in [0, 1] of a latent for each layer; the network's own run from -1 to 1."""
        maps = w.new_empty(0)
        picture: Tensor | None = None
        for number, block in enumerate(self.synthesis.values()):
            # The first block has one convolution; a layer of colour shares the next block's first latent.
            maps, picture = block(maps, picture, w[:, max(0, 2 * number - 1) :])
        return ((cast(Tensor, picture) + 1) / 2).clamp(0, 1)


class _Mapping(nn.Module):
    def __init__(self, latent_size: int, layers: int) -> None:
        super().__init__()
        for number in range(layers):
            setattr(self, f"fc{number}", EqualLinear(latent_size, latent_size, rate=0.01))
        self.layers = layers
        self.w_avg: Tensor
        self.register_buffer("w_avg", torch.zeros(latent_size))

    def forward(self, z: Tensor) -> Tensor:
        rows = unit_power(z)
        for number in range(self.layers):
            rows = active(getattr(self, f"fc{number}")(rows))
        return rows


class _Block(nn.Module):
    """One side of the picture: at 4 a constant and one convolution, above it two, and a layer of colour."""

    def __init__(self, before: int, width: int, side: int, channels: int, latent_size: int, clamp: int) -> None:
        super().__init__()
        if before:
            self.conv0 = _Convolution(before, width, side, latent_size, clamp, doubling=True)
        else:
            self.const = nn.Parameter(torch.randn(width, side, side))
        self.conv1 = _Convolution(width, width, side, latent_size, clamp, doubling=False)
        self.torgb = _ToColour(width, channels, latent_size, clamp)
        self.register_buffer("resample_filter", _filter())

    def forward(self, maps: Tensor, picture: Tensor | None, w: Tensor) -> tuple[Tensor, Tensor]:
        if picture is not None:
            maps, w = self.conv0(maps, w[:, 0]), w[:, 1:]
        else:
            maps = self.const.expand(len(w), -1, -1, -1)
        maps = self.conv1(maps, w[:, 0])
        colour: Tensor = self.torgb(maps, w[:, 1])
        return maps, colour if picture is None else _doubled(picture, self.get_buffer("resample_filter")) + colour


class _Convolution(nn.Module):
    def __init__(self, before: int, after: int, side: int, latent_size: int, clamp: int, *, doubling: bool) -> None:
        super().__init__()
        self.affine = EqualLinear(latent_size, before, bias=1.0)
        self.weight = nn.Parameter(torch.randn(after, before, 3, 3))
        self.noise_strength = nn.Parameter(torch.zeros([]))
        self.bias = nn.Parameter(torch.zeros(after))
        self.register_buffer("noise_const", torch.randn(side, side))
        self.register_buffer("resample_filter", _filter())
        self.doubling, self.clamp = doubling, clamp

    def forward(self, maps: Tensor, w: Tensor) -> Tensor:
        styles = self.affine(w)
        styled = maps * styles[:, :, None, None]
        if self.doubling:
            # A transposed convolution with stride 2 spreads the maps, and the filter takes the checkerboard out.
            out = functional.conv_transpose2d(styled, self.weight.transpose(0, 1), stride=2)
            out = _filtered(functional.pad(out, (1, 1, 1, 1)), 4 * self.get_buffer("resample_filter"))
        else:
            out = functional.conv2d(styled, self.weight, padding=1)
        out = out * demodulation(self.weight, styles)[:, :, None, None]
        out = out + self.get_buffer("noise_const") * self.noise_strength
        return _clamped(active(out + self.bias[:, None, None]), self.clamp)


class _ToColour(nn.Module):
    def __init__(self, before: int, channels: int, latent_size: int, clamp: int) -> None:
        super().__init__()
        self.affine = EqualLinear(latent_size, before, bias=1.0)
        self.weight = nn.Parameter(torch.randn(channels, before, 1, 1))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.gain, self.clamp = 1 / math.sqrt(before), clamp

    def forward(self, maps: Tensor, w: Tensor) -> Tensor:
        styles = self.affine(w) * self.gain
        out = functional.conv2d(maps * styles[:, :, None, None], self.weight) + self.bias[:, None, None]
        return _clamped(out, self.clamp)


def _filter() -> Tensor:
    row = torch.tensor(_FILTER)
    return row[:, None] * row / row.sum() ** 2


def _filtered(maps: Tensor, kernel: Tensor) -> Tensor:
    """Each map by the same symmetric kernel."""
    count = maps.shape[1]
    return functional.conv2d(maps, kernel.expand(count, 1, *kernel.shape), groups=count)


def _doubled(picture: Tensor, kernel: Tensor) -> Tensor:
    """Twice the side: zeros between the pixels, then the filter."""
    batch, channels, height, width = picture.shape
    spread = picture.new_zeros(batch, channels, height, 2, width, 2)
    spread[:, :, :, 0, :, 0] = picture
    spread = spread.reshape(batch, channels, 2 * height, 2 * width)
    return _filtered(functional.pad(spread, (2, 1, 2, 1)), 4 * kernel)


def _clamped(maps: Tensor, bound: float) -> Tensor:
    return maps.clamp(-bound, bound) if bound else maps
