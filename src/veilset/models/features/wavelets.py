"""Wavelet features: scattering maps, standardised within each record. A formula makes them, so everybody has them."""

from torch import Tensor
from torch.nn import functional

from veilset.models.features.base import Features
from veilset.models.features.scattering import Scattering, group_norm

# Images are brought into this range of sides; wavelets on more pixels cost more and tell a linear head no more.
_SMALLEST_SIDE, _LARGEST_SIDE = 16, 64
_THREE_SCALES_FROM = 48


def working_form(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Side, channels and number of scales of the transform for images of `shape` (height, width, channels)."""
    height, width, channels = shape
    side = min(_LARGEST_SIDE, max(_SMALLEST_SIDE, height, width))
    return side, channels, 3 if side >= _THREE_SCALES_FROM else 2


class ScatteringFeatures(Features):
    """Scattering maps of images of one shape (height, width, channels), standardised within each record."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        side, channels, scales = working_form(shape)
        super().__init__("wavelets", sha256=None, side=side)
        self.scattering = Scattering(side, channels, J=scales)
        self.parts = (self.scattering.out_channels * self.scattering.out_size**2,)

    def maps(self, images: Tensor) -> list[Tensor]:
        """One set of maps, of all orders and scales."""
        if images.shape[-2:] != (self.side, self.side):
            images = functional.interpolate(images, (self.side, self.side), mode="bilinear", antialias=True)
        return [group_norm(self.scattering(images))]

    def forward(self, images: Tensor) -> Tensor:
        """All maps with their positions, as one row."""
        return self.maps(images)[0].flatten(1)
