"""EfficientNet-Lite, fine-tuned: the first stages stay as published, the last ones and a new head learn.

This is what people do who train on a few thousand images: take a network that others trained on ImageNet, and adapt it.
The first stages are most of the work and see the same images in every pass, so their maps are computed once.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.models.classifiers.on_fixed import OnFixedFeatures
from veilset.models.features import DEFAULT_SIDE
from veilset.models.features.base import frozen
from veilset.models.features.efficientnet_lite import WIDTH, fused
from veilset.models.features.pretrained import prepared, published_network

_SIDE = DEFAULT_SIDE
_AT_ONCE = 16


class TunedLite(OnFixedFeatures):
    """Published weights up to a sixteenth of the side, fixed; the stages after it and a linear head are trained.

    Args:
        variant: "lite0", "lite1" or "lite2".
        channels: colour channels of the images.
        classes: number of logits.
        norm: "group" alone: norms of the published network are part of its convolutions, so no records mix.
    """

    slow_parts: ClassVar[Mapping[str, float]] = {"tail": 0.1}

    def __init__(self, variant: str, *, channels: int, classes: int, norm: str = "group") -> None:
        super().__init__()
        if norm != "group":
            raise InputError(f"{variant}-tuned has its norms inside its convolutions, so norm={norm!r} has no place.")
        if channels not in (1, 3):
            raise InputError(f"Expected images of 1 or 3 channels for {variant}-tuned, got {channels}.")
        network = fused(published_network(variant))
        cut = network.depths[-1] + 1  # where the side is halved for the last time
        blocks = list(network._blocks)
        self.fixed = _FirstStages(network._conv_stem, blocks[:cut])
        self.tail = _LastStages(blocks[cut:], network._conv_head)
        with torch.no_grad():
            self.maps_shape = self.fixed.maps(torch.zeros(1, channels, 1, 1)).shape[1:]
        self.fixed_width = self.maps_shape.numel()
        self.head = nn.Linear(WIDTH, classes)

    def read(self, features: Tensor) -> Tensor:
        """Logits of the flattened maps of the first stages."""
        maps = features.view(len(features), *self.maps_shape).contiguous(memory_format=torch.channels_last)
        logits: Tensor = self.head(self.tail(maps))
        return logits


class _FirstStages(nn.Module):
    """Images of any size to maps at a sixteenth of the side, flattened; nothing in it is trained or stored."""

    def __init__(self, stem: nn.Module, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.stem, self.blocks = frozen(stem), frozen(nn.Sequential(*blocks))

    def maps(self, images: Tensor) -> Tensor:
        """(b, C, h, w), a few images at a time, whose maps stay in the processor's cache."""
        parts = torch.split(images, _AT_ONCE)
        return torch.cat([self.blocks(functional.relu6(self.stem(prepared(part, _SIDE)))) for part in parts])

    def forward(self, images: Tensor) -> Tensor:
        """(b, C * h * w)."""
        return self.maps(images).flatten(1)


class _LastStages(nn.Module):
    """The blocks after the last halving, and the pooled result of the last convolution."""

    def __init__(self, blocks: list[nn.Module], last: nn.Module) -> None:
        super().__init__()
        self.blocks, self.last = nn.Sequential(*blocks), last

    def forward(self, maps: Tensor) -> Tensor:
        pooled: Tensor = functional.relu6(self.last(self.blocks(maps))).mean(dim=(2, 3))
        return pooled


def lite0_tuned(*, channels: int, classes: int, size: int, norm: str = "group") -> TunedLite:  # noqa: ARG001
    """EfficientNet-Lite0, fine-tuned; images of any size are brought to its own."""
    return TunedLite("lite0", channels=channels, classes=classes, norm=norm)


def lite1_tuned(*, channels: int, classes: int, size: int, norm: str = "group") -> TunedLite:  # noqa: ARG001
    """EfficientNet-Lite1, fine-tuned; images of any size are brought to its own."""
    return TunedLite("lite1", channels=channels, classes=classes, norm=norm)
