"""ScatterNet: a linear head on fixed wavelet features (Oyallon and Mallat, 2015), and those features.

The default teacher is of this kind, so a student of this kind can say all that such a teacher says: where images look
nothing like the private ones, that is worth more than depth (docs/imgsyn.md).
"""

from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.models.features.scattering import Scattering, group_norm

# Images are brought into this range of sides; wavelets on more pixels cost more and tell a linear head no more.
_SMALLEST_SIDE, _LARGEST_SIDE = 16, 64
_THREE_SCALES_FROM = 48
# Length of the rows that the head reads, so that the learning rates of other networks suit it.
_ROW_LENGTH = 10.0


def working_form(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Side, channels and number of scales of the transform for images of `shape` (height, width, channels)."""
    height, width, channels = shape
    side = min(_LARGEST_SIDE, max(_SMALLEST_SIDE, height, width))
    return side, channels, 3 if side >= _THREE_SCALES_FROM else 2


class ScatteringFeatures(nn.Module):
    """Scattering maps, standardised within each record: images (b, C, H, W) -> (b, width)."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.side, channels, scales = working_form(shape)
        self.scattering = Scattering(self.side, channels, J=scales)
        self.width = self.scattering.out_channels * self.scattering.out_size**2

    def forward(self, images: Tensor) -> Tensor:
        """The features of each image; gradients flow to the images."""
        if images.shape[-2:] != (self.side, self.side):
            images = functional.interpolate(images, (self.side, self.side), mode="bilinear", antialias=True)
        return group_norm(self.scattering(images)).flatten(1)


class ScatterNet(nn.Module):
    """The features, scaled to one length, and a linear head: 39,700 parameters for 28x28x1 and ten classes.

    Args:
        channels: colour channels of the images.
        classes: number of logits.
        size: shorter side of the images, at least 16.
        norm: "group" alone: features are standardised within each record.
    """

    def __init__(self, *, channels: int, classes: int, size: int, norm: str = "group") -> None:
        super().__init__()
        if norm != "group":
            raise InputError(f"scatternet standardises within each record, so norm={norm!r} has no place in it.")
        self.fixed = ScatteringFeatures((size, size, channels))
        self.head = nn.Linear(self.fixed.width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        return self.read(self.fixed(images))

    def read(self, features: Tensor) -> Tensor:
        """Logits of what `fixed` returned."""
        logits: Tensor = self.head(_ROW_LENGTH * functional.normalize(features, dim=1))
        return logits
