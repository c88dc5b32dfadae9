"""Public features of an image, in which distances between sets of images are measured.

With the extra `pretrained`, these are the pooled features of EfficientNet-Lite0, which was trained on ImageNet. Without
it: wavelet scattering, pooled to a 2 x 2 grid, seen along the principal directions of drawn pictures
(data/procedural_images.py), which needs no training and no download. Both are the same on every machine, so values can
be compared between releases; they are not those of Inception, whose weights a user may supply as a TorchScript file.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.core.randomness import torch_generator
from veilset.core.records import Images
from veilset.data.procedural_images import drawn_patterns
from veilset.models.features.code import principal_directions
from veilset.models.features.scattering import Scattering
from veilset.models.features.weights import PUBLISHED, is_installed

Features = NDArray[np.float64]  # (N, d)

_PRETRAINED = "lite0"
_DIRECTIONS = 96
_PICTURES = 1500
_GRID = 2
_LARGEST_SIDE = 64
# Directions of little public variance are stretched by this power of it, so that fine structure counts, too.
_WHITENING = 0.5
_FLOOR = 0.01  # of scattering values before the logarithm, which brings strong and weak maps to one scale
_INCEPTION_SIDE = 299
_AT_ONCE = 200


@dataclass(frozen=True, kw_only=True)
class Extractor:
    """A fixed function from images to features, and the name under which results say what they were measured by."""

    name: str
    of_batch: Callable[[Tensor], Tensor]  # uint8 (b, C, H, W) -> (b, d)

    def __call__(self, images: Images) -> Features:
        """The features of uint8 images (N, H, W, C)."""
        if len(images) == 0:
            raise InputError("Expected at least one image to describe, got none.")
        parts = []
        with torch.no_grad():
            for start in range(0, len(images), _AT_ONCE):
                pixels = torch.from_numpy(np.ascontiguousarray(images[start : start + _AT_ONCE].transpose(0, 3, 1, 2)))
                parts.append(self.of_batch(pixels).double())
        features: Features = torch.cat(parts).numpy()
        if not np.isfinite(features).all():
            raise InputError(f"The extractor {self.name} gave values that are not finite.")
        return features


def extractor_named(name: str, channels: int, side: int) -> Extractor:
    """An extractor for images of `side` pixels.

    Args:
        name: "wavelets", a name of published features ("lite0"), a TorchScript file, or "auto": lite0 where it is
            installed, else wavelets.
        channels: of the images.
        side: of the images.
    """
    if name == "auto":
        name = _PRETRAINED if is_installed(_PRETRAINED) else "wavelets"
    if name == "wavelets":
        return scattering_extractor(channels, side)
    return pretrained_extractor(name) if name in PUBLISHED else supplied_extractor(Path(name))


def pretrained_extractor(name: str) -> Extractor:
    """Pooled features of a published network; its name and the beginning of its hash stand beside each number."""
    from veilset.models.features.pretrained import LiteFeatures

    features = LiteFeatures(name)
    return Extractor(
        name=f"EfficientNet-{name.capitalize()}, ImageNet, {features.side} px, SHA-256 {str(features.sha256)[:12]}",
        of_batch=lambda pixels: features.pooled(pixels.float() / 255),
    )


def scattering_extractor(channels: int, side: int) -> Extractor:
    """Wavelet features for images of `side` pixels, resized to 16 to 64 where they are outside."""
    side = min(_LARGEST_SIDE, max(16, side))
    transform = Scattering(side, channels)

    def maps(images: Tensor) -> Tensor:
        if images.shape[-2:] != (side, side):
            images = functional.interpolate(images, (side, side), mode="bilinear", antialias=True)
        pooled = functional.adaptive_avg_pool2d(transform(images), _GRID)
        return (pooled.clamp_min(0) + _FLOOR).log().flatten(1)

    pictures = drawn_patterns(_PICTURES, side, channels, torch_generator(0, "evaluation/pictures"))
    with torch.no_grad():
        rows = torch.cat([maps(part) for part in torch.split(pictures, _AT_ONCE)])
    centre = rows.mean(dim=0)
    variances, directions = principal_directions(rows - centre, _DIRECTIONS)
    projection = directions * (variances / variances[0]).clamp_min(1e-6) ** (-_WHITENING / 2)
    return Extractor(
        name=f"veilset-scattering-1 ({_DIRECTIONS} directions, {side} px)",
        of_batch=lambda pixels: (maps(pixels.float() / 255) - centre) @ projection,
    )


def supplied_extractor(path: Path) -> Extractor:
    """The user's own TorchScript network, for example Inception; it is run, so take it from people you trust.

    It gets uint8 (b, 3, H, W) when its forward has `return_features`, as the Inception of the StyleGAN family;
    otherwise floats in [0, 1] of (b, 3, 299, 299). It returns (b, d).
    """
    if not path.is_file():
        raise InputError(f"There is no extractor at {path}. Pass a TorchScript file, or leave --extractor out.")
    try:
        network = torch.jit.load(str(path), map_location="cpu").eval()  # type: ignore[no-untyped-call]
        names = [argument.name for argument in network.forward.schema.arguments]
    except (RuntimeError, AttributeError, ValueError) as error:
        raise InputError(f"{path} is not a TorchScript network: {str(error).splitlines()[0]}.") from error

    def features(pixels: Tensor) -> Tensor:
        colour = pixels.expand(-1, 3, -1, -1) if pixels.shape[1] == 1 else pixels
        if "return_features" in names:
            found = network(colour, return_features=True)
        else:
            size = (_INCEPTION_SIDE, _INCEPTION_SIDE)
            found = network(functional.interpolate(colour.float() / 255, size, mode="bilinear", antialias=True))
        if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != len(pixels):
            raise InputError(f"Expected {path} to give one row of features per image (b, d).")
        return found

    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Extractor(name=f"TorchScript {path.name}, SHA-256 {digest[:12]}", of_batch=features)
