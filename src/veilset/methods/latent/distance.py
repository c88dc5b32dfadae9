"""How far two images are from each other in the eyes of a search: wavelets, published networks, or LPIPS."""

from importlib import import_module

from torch import Tensor, nn
from torch.nn import functional

from veilset.methods.latent.choices import DistanceName, require_distance
from veilset.models import SMALLEST_SIDE
from veilset.models.features.pretrained import LiteFeatures
from veilset.models.features.scattering import Scattering, group_norm

_LARGEST_SIDE = 64
_ANGLES = 4  # of the wavelets; eight take twice as long
_PIXEL_WEIGHT = 16.0  # one over the usual variance of a pixel
_LITE_DEPTHS = 3
_LPIPS_SIDE = 64  # smaller images shrink to nothing in its network


class WaveletDistance(nn.Module):
    """Squared distance in pixels and in wavelet features normalised within the image; nothing is learned."""

    def __init__(self, size: int, channels: int) -> None:
        """For images whose longer side is `size`; the shorter is stretched to a square."""
        super().__init__()
        self.side = min(_LARGEST_SIDE, max(SMALLEST_SIDE, size))
        self.scattering = Scattering(self.side, channels, L=_ANGLES)

    def features(self, images: Tensor) -> tuple[Tensor, ...]:
        """What is compared: (b, pixels) and (b, d)."""
        images = _of_side(images, self.side)
        return images.flatten(1), group_norm(self.scattering(images)).flatten(1)

    def forward(self, first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> Tensor:
        """(b,): the mean square over features, plus that over pixels in units of their variance."""
        pixels, features = ((one - two).square().mean(dim=1) for one, two in zip(first, second, strict=True))
        return features + _PIXEL_WEIGHT * pixels


class LpipsDistance(nn.Module):
    """Learned perceptual distance (Zhang et al., CVPR 2018) with the published AlexNet weights of the package lpips."""

    def __init__(self) -> None:
        super().__init__()
        require_distance("lpips")
        self.network = import_module("lpips").LPIPS(net="alex", verbose=False).eval().requires_grad_(False)

    def features(self, images: Tensor) -> tuple[Tensor, ...]:
        """The images in three colours and large enough; the network compares pairs."""
        return (_of_side(images, max(_LPIPS_SIDE, *images.shape[-2:])).expand(-1, 3, -1, -1),)

    def forward(self, first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> Tensor:
        """(b,)."""
        distances: Tensor = self.network(first[0], second[0], normalize=True)
        return distances.flatten()


class LiteDistance(nn.Module):
    """Squared distance of EfficientNet-Lite0's maps at three depths, each place of length 1, and of the pixels.

    That is LPIPS without its learned weights, on a network whose weights come from a package that we have.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.network = LiteFeatures("lite0", max(_LPIPS_SIDE, size))

    def features(self, images: Tensor) -> tuple[Tensor, ...]:
        """(b, pixels), and the maps at each depth, (b, d)."""
        maps = self.network.first_maps(images, _LITE_DEPTHS)
        shown = (functional.normalize(part, dim=1).flatten(2).mul(part[0, 0].numel() ** -0.5) for part in maps)
        return images.flatten(1), *(part.flatten(1) for part in shown)

    def forward(self, first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> Tensor:
        """(b,): the mean over places of each depth, added up, plus that over pixels in units of their variance."""
        pixels = (first[0] - second[0]).square().mean(dim=1)
        depths = [(one - two).square().sum(dim=1) for one, two in zip(first[1:], second[1:], strict=True)]
        return sum(depths, _PIXEL_WEIGHT * pixels)


Distance = WaveletDistance | LpipsDistance | LiteDistance


def distance_named(name: DistanceName, size: int, channels: int) -> Distance:
    """The distance called `name` for images whose longer side is `size`."""
    if name == "lite0":
        return LiteDistance(size)
    return LpipsDistance() if name == "lpips" else WaveletDistance(size, channels)


def _of_side(images: Tensor, side: int) -> Tensor:
    if tuple(images.shape[-2:]) == (side, side):
        return images
    return functional.interpolate(images, (side, side), mode="bilinear", antialias=True)
