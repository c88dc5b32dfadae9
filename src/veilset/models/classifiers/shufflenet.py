"""ShuffleNetV2 (Ma et al., "Practical Guidelines for Efficient CNN Architecture Design", 2018), width 1."""

import torch
from torch import Tensor, nn

from veilset.models.norms import halvings, init_relu_network, make_norm

_STAGES = ((116, 4), (232, 8), (464, 4))  # Table 5 of the paper: channels, blocks
_LAST = 1024


def _pointwise(before: int, after: int, norm: str) -> list[nn.Module]:
    return [nn.Conv2d(before, after, 1, bias=False), make_norm(norm, after), nn.ReLU()]


def _depthwise(channels: int, stride: int, norm: str) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, channels, 3, stride=stride, padding=1, groups=channels, bias=False),
        make_norm(norm, channels),
    ]


def shuffle_halves(maps: Tensor) -> Tensor:
    """Interleave the two halves of the channels, so that the next block mixes both branches."""
    batch, channels, height, width = maps.shape
    return maps.reshape(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(maps.shape)


class ShuffleBlock(nn.Module):
    """One half of the channels passes, the other is filtered; where the map is halved, both are filtered."""

    def __init__(self, before: int, after: int, norm: str) -> None:
        super().__init__()
        half = after // 2
        self.halves_map = before != after
        entering = before if self.halves_map else half
        stride = 2 if self.halves_map else 1
        self.passing: nn.Module = nn.Identity()
        if self.halves_map:
            self.passing = nn.Sequential(*_depthwise(before, 2, norm), *_pointwise(before, half, norm))
        self.filtered = nn.Sequential(
            *_pointwise(entering, half, norm), *_depthwise(half, stride, norm), *_pointwise(half, half, norm)
        )

    def forward(self, maps: Tensor) -> Tensor:
        """Maps of the next block."""
        left, right = (maps, maps) if self.halves_map else maps.chunk(2, dim=1)
        return shuffle_halves(torch.cat((self.passing(left), self.filtered(right)), dim=1))


class ShuffleNetV2(nn.Module):
    """The paper's network at width 1; small images skip the stem's stride and pooling."""

    def __init__(self, *, channels: int, classes: int, size: int, norm: str = "group") -> None:
        super().__init__()
        in_stem = max(0, halvings(size, most=5) - len(_STAGES))
        layers: list[nn.Module] = [
            nn.Conv2d(channels, 24, 3, stride=2 if in_stem > 0 else 1, padding=1, bias=False),
            make_norm(norm, 24),
            nn.ReLU(),
        ]
        if in_stem > 1:
            layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        before = 24
        for after, blocks in _STAGES:
            for _ in range(blocks):
                layers.append(ShuffleBlock(before, after, norm))
                before = after
        layers += _pointwise(before, _LAST, norm)
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(_LAST, classes)
        init_relu_network(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        maps: Tensor = self.features(images)
        logits: Tensor = self.head(maps.mean(dim=(2, 3)))
        return logits
