"""Principal directions of public images, sharpened by a style-based network that is trained against a critic.

A latent w holds standard normal coordinates along the leading principal directions of public images (eigenfaces, Turk
and Pentland 1991), taken of log-odds of pixels. They make a blurred picture; a small network, which sees that picture
at every scale and is modulated by w as in models/generators/style.py, paints what is missing. Training starts from
pictures that are right but blurred, and a picture's w is found without a network, by the principal directions alone.
No public image's own coordinates are kept.
"""

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.models.features.code import principal_directions
from veilset.models.generators.sides import START_SIDE, level_count
from veilset.models.generators.style import (
    EqualConvolution,
    LatentGenerator,
    StyledConvolution,
    active,
    doubled,
    widths_of,
)

_MOST_WIDENING = 8  # maps at coarse levels, where work is cheap, in multiples of those at the finest
_EDGE = 0.02  # pixels nearer to black or white than this count as this near


class SharpenedGenerator(LatentGenerator):
    """Blurred pictures along principal directions, and a network that sharpens them.

    Args:
        size: side of the square image, 8 to 256 pixels; sides that are no power of two are cut out of the next one.
        channels: colour channels.
        latent_size: principal directions.
        width: maps at the finest level; doubled at each coarser one, up to eight times as many.
    """

    settings = ("size", "channels", "latent_size", "width")

    mean: Tensor  # (channels * size * size,), of half the log-odds of pixels
    directions: Tensor  # (latent_size, channels * size * size), each as long as its deviation

    def __init__(self, size: int, channels: int, latent_size: int = 128, width: int = 16) -> None:
        super().__init__()
        levels = level_count(size)
        if min(channels, latent_size, width) < 1:
            raise InputError(
                f"Expected channels, latent_size and width of at least 1, got {channels}, {latent_size} and {width}."
            )
        self.size, self.channels, self.latent_size, self.width = size, channels, latent_size, width
        self.padding = (START_SIDE * 2**levels - size) // 2
        widths = widths_of(width, levels, _MOST_WIDENING)
        self.first = EqualConvolution(channels, widths[0], 3)
        self.levels = nn.ModuleList(
            _Sharpening(before, after, channels, latent_size) for before, after in itertools.pairwise(widths)
        )
        self.register_buffer("mean", torch.zeros(channels * size * size))
        self.register_buffer("directions", torch.zeros(latent_size, channels * size * size))
        self.register_buffer("w_average", torch.zeros(latent_size))

    @torch.no_grad()
    def learn_directions(self, pictures: Tensor) -> None:
        """Take mean and principal directions from public pictures in [0, 1], (n, channels, size, size)."""
        if len(pictures) <= self.latent_size:
            raise InputError(
                f"Expected more than {self.latent_size} public images for as many directions, got {len(pictures)}."
            )
        rows = _half_log_odds(pictures).flatten(1)
        self.mean.copy_(rows.mean(dim=0))
        variances, directions = principal_directions(rows - self.mean, self.latent_size)
        self.directions.copy_(directions.T * variances.sqrt()[:, None])

    def map(self, z: Tensor) -> Tensor:
        """Latents are the noise itself."""
        return z

    def forward(self, w: Tensor) -> Tensor:
        """Images in [0, 1]."""
        picture = (w @ self.directions + self.mean).reshape(len(w), self.channels, self.size, self.size)
        seen = [functional.pad(picture, (self.padding,) * 4, mode="replicate") if self.padding else picture]
        for _ in self.levels:
            seen.append(functional.avg_pool2d(seen[-1], 2))
        maps = active(self.first(seen.pop().contiguous(memory_format=torch.channels_last)))
        painted: Tensor | None = None
        for level in self.levels:
            maps, layer = level(maps, seen.pop(), w)
            painted = layer if painted is None else doubled(painted) + layer
        assert painted is not None
        inner = slice(self.padding, self.padding + self.size)
        return torch.sigmoid(2 * (picture + painted[:, :, inner, inner]))

    def encode(self, images: Tensor) -> Tensor:
        """Latents (b, latent_size) of images in [0, 1], each alone: their place along the principal directions."""
        lengths = self.directions.square().sum(dim=1).clamp_min(1e-12)
        return (_half_log_odds(images).flatten(1) - self.mean) @ self.directions.T / lengths

    def straighten(self, w: Tensor) -> Tensor:
        """Latents are straight as they are."""
        return w

    def bend(self, straight: Tensor) -> Tensor:
        """What `straighten` undoes: nothing."""
        return straight


class _Sharpening(nn.Module):
    """Twice the side: maps narrowed before they are enlarged, a look at the blurred picture, and a layer of paint."""

    def __init__(self, before: int, after: int, channels: int, latent_size: int) -> None:
        super().__init__()
        self.narrow = StyledConvolution(before, after, latent_size)
        self.look = EqualConvolution(channels, after, 3)
        self.refine = StyledConvolution(after, after, latent_size)
        self.paint = StyledConvolution(after, channels, latent_size, kernel=1, demodulated=False)
        nn.init.zeros_(self.paint.convolution.weight)  # the first pictures are the blurred ones

    def forward(self, maps: Tensor, picture: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        maps = doubled(self.narrow(maps, w)) + self.look(picture)
        maps = self.refine(maps, w)
        return maps, self.paint(maps, w)


def _half_log_odds(images: Tensor) -> Tensor:
    return torch.logit(images.clamp(_EDGE, 1 - _EDGE)) / 2
