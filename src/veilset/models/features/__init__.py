"""Fixed features of images, by name. Nothing here imports torch until features are built."""

from typing import TYPE_CHECKING

from veilset.core.errors import InputError
from veilset.core.registry import unknown_name
from veilset.models.features.weights import MAPS, PUBLISHED, weights_of

if TYPE_CHECKING:
    from veilset.models.features.base import Features

DEFAULT_SIDE = 128
"""Of the square images that pretrained networks see."""
FEATURES = ("wavelets", *PUBLISHED, *(f"{name}{MAPS}" for name in PUBLISHED))
"""Those that have a name; `module:function` and `timm:NAME@FILE.safetensors` are the user's own."""


def build_features(name: str, shape: tuple[int, int, int], *, side: int = DEFAULT_SIDE) -> "Features":
    """Features for images of `shape` (height, width, channels).

    Args:
        name: one of `FEATURES`, several of them joined by "+", or the user's own.
        shape: of the images.
        side: of the square images that pretrained networks see. Wavelets choose their own.
    """
    if ":" in name:
        from veilset.models.features.pretrained import load_own

        return load_own(name, side=side, channels=shape[2])
    members = [_named(part, shape, side) for part in name.split("+")]
    if len(members) == 1:
        return members[0]
    from veilset.models.features.base import JoinedFeatures

    return JoinedFeatures(members)


def _named(name: str, shape: tuple[int, int, int], side: int) -> "Features":
    if name == "wavelets":
        from veilset.models.features.wavelets import ScatteringFeatures

        return ScatteringFeatures(shape)
    if weights_of(name) is None:
        raise unknown_name("features", name, list(FEATURES))
    if shape[2] not in (1, 3):
        raise InputError(f"Expected images of 1 or 3 channels for the features {name}, got {shape[2]}.")
    from veilset.models.features.pretrained import LiteFeatures

    return LiteFeatures(name, side)
