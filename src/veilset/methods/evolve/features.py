"""The space in which private images find their nearest candidates: fixed by public pictures, one unit row an image."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from veilset.core.randomness import torch_generator
from veilset.methods.evolve.config import PRETRAINED, FeatureSpace
from veilset.models.features import build_features
from veilset.models.features.embeddings import Embedding, ImageEmbedding
from veilset.models.features.perceptual import PerceptualEmbedding

Features = Callable[[Tensor], Tensor]
"""Images in [0, 1] (b, C, H, W) to rows (b, d) of length 1, each row a function of its own image and public numbers."""

_LARGEST_SIDE, _SMALLEST_SIDE = 32, 16
_CODE_SIZE = 256
_PRETRAINED_SIDE = 64  # every image is looked at in each round
_PICTURES = 2000
_COARSE_SIDE, _COARSE_PART = 8, 0.5  # brightness beside the code, which does not see it
_AT_ONCE = 500


def feature_space(name: FeatureSpace, pictures: Tensor, *, seed: int, device: str) -> Features:
    """The features called `name`; `pictures` (n, C, H, W) are public and fix centres, scales and directions."""
    pictures = pictures[:_PICTURES].to(device)
    coarse = _Coarse(pictures)
    if name == "pixels":
        return coarse
    if name == "pretrained":
        network = build_features(PRETRAINED, _shape(pictures), side=_PRETRAINED_SIDE).to(device)
        return _Coded(PerceptualEmbedding(network, pictures, code_size=min(_CODE_SIZE, len(pictures) - 1)), coarse)
    seen = _seen(pictures)
    embedding = ImageEmbedding(
        "scattering",
        seen.cpu(),
        code_size=min(_CODE_SIZE, len(seen) - 1),
        random_features=4,
        generator=torch_generator(seed, "evolve features"),
    ).to(device)

    return _Coded(embedding, coarse, small=True)


@torch.no_grad()
def features_of(features: Features, images: Tensor, device: str) -> Tensor:
    """The rows of public or generated images, on the processor."""
    return torch.cat([features(part.to(device)).cpu() for part in torch.split(images, _AT_ONCE)])


class _Coarse:
    """Coarse pictures less the public mean, of length 1: brightness and colour."""

    def __init__(self, pictures: Tensor) -> None:
        self._mean = self._small(pictures).mean(dim=0)

    def __call__(self, images: Tensor) -> Tensor:
        return functional.normalize(self._small(images) - self._mean, dim=1)

    def _small(self, images: Tensor) -> Tensor:
        return functional.adaptive_avg_pool2d(images, _COARSE_SIDE).flatten(1)


class _Coded:
    """The code of an image beside its coarse picture, together of length 1; of the image made small, for wavelets."""

    def __init__(self, embedding: Embedding, coarse: _Coarse, *, small: bool = False) -> None:
        self._embedding, self._coarse, self._small = embedding, coarse, small

    def __call__(self, images: Tensor) -> Tensor:
        code = self._embedding.code(_seen(images) if self._small else images)
        return functional.normalize(torch.cat([code, _COARSE_PART * self._coarse(images)], dim=1), dim=1)


def _shape(pictures: Tensor) -> tuple[int, int, int]:
    _, channels, height, width = pictures.shape
    return height, width, channels


def _seen(images: Tensor) -> Tensor:
    """Images as the wavelets see them: square, of 16 to 32 pixels, so that large images cost no more."""
    side = min(_LARGEST_SIDE, max(_SMALLEST_SIDE, *images.shape[-2:]))
    if images.shape[-2:] == (side, side):
        return images
    return functional.interpolate(images, (side, side), mode="bilinear", antialias=True, align_corners=False)
