"""A style-based generator seen by other latents: Z, the noise itself, or W+, one mapped noise for each layer.

Abdal, Qin and Wonka, "Image2StyleGAN" (ICCV 2019) for W+. To the method `latent` a view is a generator as any other.
"""

import torch
from torch import Tensor
from torch.special import ndtr

from veilset.core.errors import InputError
from veilset.models.generators.sides import LatentsName
from veilset.models.generators.style import LatentGenerator, LayeredGenerator


class ZView(LatentGenerator):
    """Latents are the noise: standard normal by definition, and only as smooth as the mapping is."""

    settings = ()

    def __init__(self, inner: LayeredGenerator) -> None:
        super().__init__()
        self.inner = inner
        self.size, self.breadth, self.channels = inner.size, inner.breadth, inner.channels
        self.latent_size = inner.latent_size
        self.register_buffer("w_average", torch.zeros_like(inner.w_average))

    def map(self, z: Tensor) -> Tensor:
        """The noise itself."""
        return z

    def forward(self, w: Tensor) -> Tensor:
        """Images in [0, 1]."""
        images: Tensor = self.inner(self.inner.map(w))
        return images

    def straighten(self, w: Tensor) -> Tensor:
        """Noise is straight as it is."""
        return w

    def bend(self, straight: Tensor) -> Tensor:
        """What `straighten` undoes: nothing."""
        return straight


class LayersView(LatentGenerator):
    """Latents are all layers' side by side.

    Its own draws mix two styles: one of the generator's w up to a layer, another from there on, as StyleGAN is trained.
    With one w alone the layers would never differ, and nothing could be estimated of how they do.
    """

    settings = ()

    def __init__(self, inner: LayeredGenerator) -> None:
        super().__init__()
        self.inner = inner
        self.size, self.breadth, self.channels = inner.size, inner.breadth, inner.channels
        self.latent_size = inner.layers * inner.latent_size
        self.register_buffer("w_average", inner.w_average.repeat(inner.layers))

    def map(self, z: Tensor) -> Tensor:
        """Of the noise (b, layers * d), two parts are mapped and a number says where the second takes over."""
        inner = self.inner
        parts = z.reshape(len(z), inner.layers, inner.latent_size)
        first, second = inner.map(parts[:, 0]), inner.map(parts[:, 1])
        # From layer 1 on, or not at all, each as often; there are four layers or more.
        taken_over = 1 + (ndtr(parts[:, 2, 0]) * inner.layers).long().clamp(max=inner.layers - 1)
        before = torch.arange(inner.layers, device=z.device) < taken_over[:, None]
        return torch.where(before[..., None], first[:, None], second[:, None]).flatten(1)

    def forward(self, w: Tensor) -> Tensor:
        """Images in [0, 1]."""
        return self.inner.layered(w.reshape(len(w), self.inner.layers, self.inner.latent_size))


_VIEWS: dict[str, type[ZView] | type[LayersView]] = {"z": ZView, "w_plus": LayersView}


def seen_by(generator: LatentGenerator, latents: LatentsName) -> LatentGenerator:
    """The generator by these latents; W is what every generator has."""
    if latents == "w":
        return generator
    if not isinstance(generator, LayeredGenerator):
        raise InputError(f"latents={latents} needs a style or stylegan2 generator. Set latents=w.")
    return _VIEWS[latents](generator).eval().requires_grad_(False).to(generator.w_average.device)


def behind(generator: LatentGenerator) -> LatentGenerator:
    """The generator that a view is of, or the generator itself."""
    return generator.inner if isinstance(generator, ZView | LayersView) else generator
