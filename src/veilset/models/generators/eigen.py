"""A generator without training: public images along their principal directions, each draw one of them, slightly moved.

After eigenfaces (Turk and Pentland 1991) and the smoothed bootstrap (Silverman and Young 1987). A latent w holds the
coordinates of an image along the principal directions of public images. A draw picks a public image's w and adds noise
of the same covariance, shrunk so that mean and covariance stay. An image turns into w and back exactly, up to the
directions left out, which a network trained against a critic reaches only after many hours.

Its images look much like the public ones: whoever may not be shown must not be among them.
"""

import math

import numpy as np
import torch
from torch import Tensor
from torch.special import ndtr

from veilset.core.errors import InputError
from veilset.core.records import Images
from veilset.models.generators.style import LatentGenerator

SHOWS_PUBLIC = (
    "The images are public images, changed: they, and the generator, show the people or things of the public images "
    "much as they are."
)
_SMOOTHING = 0.1  # of the noise on a public image's w, against that direction's deviation


class EigenGenerator(LatentGenerator):
    """Public images in their principal directions.

    Args:
        size: height of the image.
        channels: colour channels.
        latent_size: principal directions.
        pictures: public images whose coordinates are kept.
        breadth: of the image, where it is not square.
    """

    settings = ("size", "channels", "latent_size", "pictures")

    mean: Tensor  # (channels * height * breadth,)
    directions: Tensor  # (channels * height * breadth, latent_size), the most variance first
    deviations: Tensor  # (latent_size,)
    codes: Tensor  # (pictures, latent_size), in half precision: they are most of the file

    def __init__(self, size: int, channels: int, latent_size: int, pictures: int, breadth: int | None = None) -> None:
        super().__init__()
        if min(size, channels, latent_size, pictures, size if breadth is None else breadth) < 1:
            raise InputError(
                "Expected size, channels, latent_size, pictures and breadth of at least 1, "
                f"got {size}, {channels}, {latent_size}, {pictures} and {breadth}."
            )
        self.size, self.channels, self.latent_size, self.pictures = size, channels, latent_size, pictures
        self.breadth = None if breadth == size else breadth
        numbers = math.prod(self.shape)
        self.register_buffer("mean", torch.zeros(numbers))
        self.register_buffer("directions", torch.zeros(numbers, latent_size))
        self.register_buffer("deviations", torch.zeros(latent_size))
        self.register_buffer("codes", torch.zeros(pictures, latent_size, dtype=torch.float16))
        self.register_buffer("w_average", torch.zeros(latent_size))

    def map(self, z: Tensor) -> Tensor:
        """The first number of z picks a public image; all of them move it."""
        chosen = (ndtr(z[:, 0].double()) * self.pictures).long().clamp(max=self.pictures - 1)
        moved = self.codes[chosen] + _SMOOTHING * self.deviations * z
        return moved / math.sqrt(1 + _SMOOTHING**2)

    def forward(self, w: Tensor) -> Tensor:
        """Images in [0, 1]."""
        pixels, (height, breadth, channels) = w @ self.directions.T + self.mean, self.shape
        return pixels.clamp(0, 1).reshape(len(w), channels, height, breadth)

    def encode(self, images: Tensor) -> Tensor:
        """Latents (b, latent_size) of images in [0, 1] (b, channels, height, breadth), each alone."""
        return (images.flatten(1) - self.mean) @ self.directions

    def kept_pictures(self) -> Images:
        """The public images (pictures, height, breadth, channels) that the generator shows, as 8 bits."""
        return np.ascontiguousarray(self.render(self.codes.float()).permute(0, 2, 3, 1).numpy())

    def straighten(self, w: Tensor) -> Tensor:
        """Latents are straight as they are."""
        return w

    def bend(self, straight: Tensor) -> Tensor:
        """What `straighten` undoes: nothing."""
        return straight
