"""Fixed features of an image for matching distributions: a code of unit length and random Fourier features.

The random features (Rahimi and Recht, 2007) approximate a Gaussian kernel, so the mean of them over a class is a kernel
mean embedding: two classes with the same mean have nearly the same distribution. A kernel on pixels sees little; here
it sits on scattering maps, seen three ways: normalised within each record (shape and texture), as they are (contrast),
and as a coarse picture (brightness).

Everything fixed about the map comes from public pictures and a seed, and an image's features depend on that image
alone: so they may be clipped and summed over private images.
"""

import math
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.models.features.code import principal_directions
from veilset.models.features.scattering import Scattering, group_norm

FeatureForm = Literal["scattering", "pixels"]
Kernel = Literal["gaussian", "hermite"]

# Four angles, not eight, for speed. A linear classifier of the codes at epsilon 1, same eigenvalue floor, one noise
# draw each, on validation images: 96.8 and 84.4 % (MNIST, Fashion-MNIST) with four, 97.3 and 84.8 % with eight. The two
# trials also differed in the groups of the norm and a little in the noise.
_ANGLES = 4

# Public directions of little variance are stretched by this power of it: 0 is plain PCA, 1 whitens.
_WHITENING = 0.75

# How far brightness and contrast count against the shape code, which has length 1.
_BRIGHTNESS_SCALE = 0.5
_CONTRAST_SCALE = 0.5

# Kernel widths as shares of the median distance of public pictures: one sees fine differences, one the whole.
_BANDWIDTHS = (0.35, 1.0)

# Hermite features: orders of each coordinate, and how much of one order the next has (rho of Mehler's formula).
_ORDERS, _DECAY = 8, 0.5
_FARTHEST = 10.0  # public deviations; features fade long before, and powers must stay finite

_COARSE_SIDE = 14
# Larger images are averaged down to this side: memory and time stay those of it, and a row is still of one image alone.
_LARGEST_SIDE = 64
_LEAST_RADIUS = 0.1  # pictures that are nearly alike would cut everything else
_AT_ONCE = 500


def working_side(size: int) -> int:
    """The side at which images of `size` pixels are seen."""
    return min(_LARGEST_SIDE, size)


def shrunk(images: Tensor, side: int) -> Tensor:
    """Images (b, C, H, W) at this side, by averaging pixels; smaller ones as they are. Gradients flow."""
    return images if images.shape[-1] <= side else functional.adaptive_avg_pool2d(images, side)


class Embedding(Protocol):
    """What a generator is trained through: this one here, or that of perceptual.py."""

    code_size: int

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Codes (b, code_size) of length 1, and features (b, d); gradients flow to the images."""

    def code(self, images: Tensor) -> Tensor:
        """The codes alone."""

    def centred(self, features: Tensor) -> Tensor:
        """What is summed of features over private images: of length at most 1."""

    def restored(self, means: Tensor) -> Tensor:
        """What the mean features of generated images are drawn to, from means of `centred`."""


class ImageEmbedding(nn.Module):
    """Codes (batch, code_size) of length 1 and random features (batch, random_features) of length 1.

    Args:
        form: "scattering", or "pixels" for a kernel on the pixels themselves.
        public: public pictures in [0, 1], (count, channels, size, size), with more of them than `code_size`; of more
            than 64 pixels they, and all images, are seen at 64.
        code_size: length of the code.
        random_features: number of random features, a multiple of 4.
        generator: draws the frequencies.
        kernel: "gaussian", by random Fourier features, or "hermite", by the first orders of Hermite polynomials of as
            many leading public directions as `random_features` allows (Vinaroz et al., ICML 2022, their sum kernel).
    """

    def __init__(
        self,
        form: FeatureForm,
        public: Tensor,
        *,
        code_size: int,
        random_features: int,
        generator: torch.Generator,
        kernel: Kernel = "gaussian",
    ) -> None:
        super().__init__()
        channels, size = public.shape[1], working_side(public.shape[2])
        self.side = size
        self.form, self.code_size = form, code_size
        self.scattering = Scattering(size, channels, L=_ANGLES) if form == "scattering" else None
        self.coarse = max(1, size // _COARSE_SIDE)
        with torch.no_grad():
            shapes, others = zip(*(self._views(part) for part in torch.split(public, _AT_ONCE)), strict=True)
            self._fix_code(torch.cat(shapes), code_size, generator)
            self._fix_scales(torch.cat(others))
            points = torch.cat([self._points(part)[1] for part in torch.split(public, _AT_ONCE)])
        self.kernel = kernel
        if kernel == "hermite":
            self._fix_coordinates(points, max(1, random_features // _ORDERS))
        else:
            self._fix_frequencies(points, random_features, generator)
        centre = self._features(points).mean(dim=0)
        self.register_buffer("centre", centre)
        # The root mean square length of the public pictures' features around their mean.
        self.radius = float((1 - centre.square().sum()).clamp_min(0.0).sqrt().clamp_min(_LEAST_RADIUS))

    def _fix_frequencies(self, points: Tensor, random_features: int, generator: torch.Generator) -> None:
        """Draw frequencies for the median distance of public pictures."""
        pairs = torch.randint(0, len(points), (2, 20_000), generator=generator)
        median = (points[pairs[0]] - points[pairs[1]]).norm(dim=1).median()
        half = random_features // 2
        widths = torch.tensor(_BANDWIDTHS).repeat_interleave(half // len(_BANDWIDTHS)) * median
        directions = torch.randn(points.shape[1], len(widths), generator=generator)
        self.register_buffer("frequencies", directions / widths)

    def _fix_coordinates(self, points: Tensor, count: int) -> None:
        """The leading directions of public pictures, in units of their deviation there."""
        middle = points.mean(dim=0)
        variances, directions = principal_directions(points - middle, min(count, points.shape[1], len(points) - 1))
        self.register_buffer("middle", middle)
        self.register_buffer("axes", directions / variances.sqrt())

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The codes and the random features; gradients flow to the images."""
        code, points = self._points(images)
        return code, self._features(points)

    def summed(self, images: Tensor) -> Tensor:
        """What is summed over private images: the centred random features."""
        features: Tensor = self(images)[1]
        return self.centred(features)

    def centred(self, features: Tensor) -> Tensor:
        """Random features around their public mean, cut to the public radius and divided by it: of length at most 1.

        All pictures have something in common, which need not be told with noise: a sum of these rows has the same noise
        as one of the features themselves, and `restored` makes less of it.
        """
        around = (features - self.get_buffer("centre")) / self.radius
        lengths: Tensor = around.norm(dim=1, keepdim=True)
        return around / lengths.clamp_min(1.0)

    def restored(self, means: Tensor) -> Tensor:
        """Means of random features from means of `centred` ones."""
        return self.get_buffer("centre").to(means) + self.radius * means

    def code(self, images: Tensor) -> Tensor:
        """The codes alone, without the random features."""
        return self._points(images)[0]

    def _features(self, points: Tensor) -> Tensor:
        """Rows of length 1 whose products are the kernel."""
        if self.kernel == "gaussian":
            return self._random_features(points)
        x = ((points - self.get_buffer("middle")) @ self.get_buffer("axes")).clamp(-_FARTHEST, _FARTHEST)
        return functional.normalize(hermite_features(x, _ORDERS, _DECAY).flatten(1), dim=1)

    def _random_features(self, points: Tensor) -> Tensor:
        angles = points @ self.get_buffer("frequencies")
        waves: Tensor = torch.cat([angles.cos(), angles.sin()], dim=1) / angles.shape[1] ** 0.5
        return waves

    def _views(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """What the code is made of, and what the kernel sees beside it."""
        images = shrunk(images, self.side)
        if self.scattering is None:
            return images.flatten(1), images.flatten(1)
        maps = self.scattering(images)
        picture = functional.avg_pool2d(images, self.coarse).flatten(1)
        return group_norm(maps, maps.shape[1]).flatten(1), torch.cat([picture, maps.flatten(1)], dim=1)

    def _points(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The codes, and the points between which the kernel measures distance."""
        shape, other = self._views(images)
        projected = (shape - self.get_buffer("shape_mean")) @ self.get_buffer("projection")
        code = functional.normalize(projected, dim=1)
        scaled = (other - self.get_buffer("other_mean")) * self.get_buffer("other_scale")
        return code, scaled if self.scattering is None else torch.cat([code, scaled], dim=1)

    def _fix_code(self, shapes: Tensor, code_size: int, generator: torch.Generator) -> None:
        """Centre the shape features and project them on the leading directions of the public pictures."""
        mean = shapes.mean(dim=0)
        size = self.code_size = min(code_size, *shapes.shape)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
            _, strength, directions = torch.svd_lowrank(shapes - mean, q=min(size + 32, *shapes.shape), niter=3)
        stretch = (strength[:size] / strength[0]).clamp_min(1e-6) ** _WHITENING
        self.register_buffer("shape_mean", mean)
        self.register_buffer("projection", directions[:, :size] / stretch)

    def _fix_scales(self, others: Tensor) -> None:
        """Centre brightness and contrast and give each its public root mean square length."""
        mean = others.mean(dim=0)
        centred = (others - mean).square()
        if self.scattering is None:
            scale = torch.full_like(mean, float(centred.sum(dim=1).mean().rsqrt()))
        else:
            maps = self.scattering.out_channels * self.scattering.out_size**2
            picture, contrast = centred[:, :-maps], centred[:, -maps:]
            scale = torch.cat(
                [
                    (_BRIGHTNESS_SCALE * picture.sum(dim=1).mean().rsqrt()).expand(picture.shape[1]),
                    (_CONTRAST_SCALE * contrast.sum(dim=1).mean().rsqrt()).expand(maps),
                ]
            )
        self.register_buffer("other_mean", mean)
        self.register_buffer("other_scale", scale)


def hermite_features(x: Tensor, orders: int, decay: float) -> Tensor:
    """(b, d, orders): features of each number alone whose products over all orders are a Gaussian kernel (Mehler).

    The feature of order c is decay^(c/2) H_c(x) exp(-decay/(1 + decay) x^2) / sqrt(2^c c!), H_c the physicists' Hermite
    polynomials; with all orders the product of two numbers' features is exp(-decay/(1 - decay^2) (x - y)^2) up to a
    constant.
    """
    found = [torch.exp(-decay / (1 + decay) * x.square())]
    for order in range(1, orders):
        # H_c / sqrt(2^c c!) from the two before it, by which no factorial grows large.
        after = math.sqrt(2 * decay / order) * x * found[-1]
        if order > 1:
            after = after - decay * math.sqrt((order - 1) / order) * found[-2]
        found.append(after)
    return torch.stack(found, dim=2)
