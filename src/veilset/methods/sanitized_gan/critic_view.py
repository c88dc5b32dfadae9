"""What critics of disjoint shards see of an image: its fixed code beside a coarse picture of it, or the image itself.

Fixed by drawn pictures and a seed, and of one image at a time: so a mechanism may show private images this way.
"""

import torch
from torch import Tensor
from torch.nn import functional

from veilset.core.randomness import torch_generator
from veilset.data.procedural_images import drawn_patterns
from veilset.methods.shared.class_statistics import as_floats
from veilset.models.features.embeddings import ImageEmbedding

_COARSE_SIDE = 14


def seen_shape(shape: tuple[int, int, int], code_size: int) -> tuple[int, ...]:
    """Of what is seen of an image of `shape` (height, width, channels)."""
    size, _, channels = shape
    if code_size == 0:
        return channels, size, size
    return (code_size + channels * (size // _shrinking(size)) ** 2,)


class Sight:
    """A map from images to what critics see.

    Args:
        shape: of the images: height, width, channels.
        code_size: coordinates of a code; 0 shows the image itself.
        brightness: length of the coarse picture beside a code, which has length 1.
        pictures: drawn pictures that fix the map.
        seed: of them.
        device: where images are seen.
    """

    def __init__(
        self, shape: tuple[int, int, int], *, code_size: int, brightness: float, pictures: int, seed: int, device: str
    ) -> None:
        size, _, channels = shape
        self.device, self.embedding, self.coarse = device, None, _shrinking(size)
        if code_size == 0:
            return
        drawn = drawn_patterns(pictures, size, channels, torch_generator(seed, "embedding pictures"))
        self.embedding = ImageEmbedding(
            "scattering", drawn, code_size=code_size, random_features=4, generator=torch_generator(seed, "embedding")
        ).to(device)
        coarse = self._coarse(drawn)
        self.mean = coarse.mean(dim=0)
        self.scale = brightness * (coarse - self.mean).square().sum(dim=1).mean().rsqrt()

    def points(self, images: Tensor) -> Tensor:
        """Of images in [0, 1], (b, C, H, W); gradients flow to them."""
        if self.embedding is None:
            return images
        return torch.cat([self.embedding.code(images), (self._coarse(images) - self.mean) * self.scale], dim=1)

    def rows(self, images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002
        """Of 8-bit images (b, H, W, C): one flat row each, from that image alone."""
        return self.points(as_floats(images, self.device)).flatten(1).cpu()

    def _coarse(self, images: Tensor) -> Tensor:
        return functional.avg_pool2d(images, self.coarse).flatten(1)


def _shrinking(size: int) -> int:
    """How many pixels of a side become one of the coarse picture."""
    return max(1, size // _COARSE_SIDE)
