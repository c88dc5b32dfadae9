"""What critics of disjoint shards see of an image: its fixed code beside a coarse picture of it, or the image itself.

Fixed by drawn pictures and a seed, and of one image at a time: so a mechanism may show private images this way.
"""

import torch
from torch import Tensor
from torch.nn import functional

from veilset.core.randomness import torch_generator
from veilset.data.procedural_images import drawn_patterns
from veilset.data.tensors import as_floats
from veilset.methods.sanitized_gan.config import SanitizedGanSettings, seen_side, shrinking
from veilset.models.features.embeddings import ImageEmbedding, shrunk


class CriticView:
    """A map from images of `shape` (height, width, channels) to what critics see.

    Settings and seed fix it; `device` is where images are seen.
    """

    def __init__(self, settings: SanitizedGanSettings, shape: tuple[int, int, int], *, seed: int, device: str) -> None:
        size, channels = seen_side(shape[0]), shape[2]
        self.side = size
        self.device, self.embedding, self.coarse = device, None, shrinking(size)
        if not settings.codes:
            return
        drawn = drawn_patterns(settings.pictures, size, channels, torch_generator(seed, "embedding pictures"))
        self.embedding = ImageEmbedding(
            "scattering",
            drawn,
            code_size=settings.codes,
            random_features=4,
            generator=torch_generator(seed, "embedding"),
        ).to(device)
        coarse = self._coarse(drawn)
        self.mean = coarse.mean(dim=0)
        self.scale = settings.brightness * (coarse - self.mean).square().sum(dim=1).mean().rsqrt()

    def points(self, images: Tensor) -> Tensor:
        """Of images in [0, 1], (b, C, H, W); gradients flow to them."""
        if self.embedding is None:
            return images
        images = shrunk(images, self.side)
        return torch.cat([self.embedding.code(images), (self._coarse(images) - self.mean) * self.scale], dim=1)

    def rows(self, images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002 (the form of a mechanism's callback)
        """Of 8-bit images (b, H, W, C): one flat row each, from that image alone."""
        return self.points(as_floats(images, self.device)).flatten(1).cpu()

    def _coarse(self, images: Tensor) -> Tensor:
        return functional.avg_pool2d(images, self.coarse).flatten(1)
