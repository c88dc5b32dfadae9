"""EfficientNet-Lite 0, 1 and 2: small networks for photographs, whose weights are public.

Tan and Le, "EfficientNet" (2019), in the form that Google published for phones: blocks of MobileNetV2 (Sandler et al.,
2018) with ReLU6 and without squeeze-and-excitation; the stem, the head and the first and last stage keep their size.
Layers carry the names of the published files. Convolutions pad as TensorFlow does, where the weights were trained.
"""

import math
from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from veilset.core.errors import InputError

WIDTH = 1280  # of the pooled features

_VARIANTS: Mapping[str, tuple[float, float]] = {"lite0": (1.0, 1.0), "lite1": (1.0, 1.1), "lite2": (1.1, 1.2)}
# Of each stage: blocks, kernel, stride, expansion, channels.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM = 32
_CLASSES = 1000
_NORM_FLOOR = 1e-3


class _Convolution(nn.Conv2d):
    """Without a bias until the norm is fused into it; padded so that the side shrinks by the stride, rounded up."""

    def __init__(self, channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        padding = kernel // 2 if stride == 1 else 0
        super().__init__(channels, out_channels, kernel, stride, padding=padding, groups=groups, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        if stride > 1:  # more is added below and to the right than above and to the left
            height, width = (max(0, (math.ceil(side / stride) - 1) * stride + kernel - side) for side in maps.shape[2:])
            edges = (width // 2, width - width // 2, height // 2, height - height // 2)
            maps = functional.pad(maps, edges)
        return super().forward(maps)


class _Block(nn.Module):
    """Widen, filter each channel, narrow; the input is added where it has the same shape."""

    def __init__(self, channels: int, out_channels: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = channels * expansion
        self._expand_conv = _Convolution(channels, inner, 1) if expansion > 1 else None
        self._bn0 = _norm(inner) if expansion > 1 else None
        self._depthwise_conv = _Convolution(inner, inner, kernel, stride, groups=inner)
        self._bn1 = _norm(inner)
        self._project_conv = _Convolution(inner, out_channels, 1)
        self._bn2 = _norm(out_channels)
        self.adds_input = stride == 1 and channels == out_channels

    def forward(self, maps: Tensor) -> Tensor:
        inner = maps
        if self._expand_conv is not None and self._bn0 is not None:
            inner = functional.relu6(self._bn0(self._expand_conv(inner)))
        inner = functional.relu6(self._bn1(self._depthwise_conv(inner)))
        narrow: Tensor = self._bn2(self._project_conv(inner))
        return maps + narrow if self.adds_input else narrow


class EfficientNetLite(nn.Module):
    """Images, normalised as in its training, (b, 3, h, w) with sides of at least 32, to maps at four depths.

    Args:
        variant: "lite0", "lite1" or "lite2".
    """

    def __init__(self, variant: str) -> None:
        super().__init__()
        if variant not in _VARIANTS:
            raise InputError(f"Expected one of {', '.join(_VARIANTS)}, got {variant!r}.")
        wide, deep = _VARIANTS[variant]
        self._conv_stem, self._bn0 = _Convolution(3, _STEM, 3, 2), _norm(_STEM)
        blocks: list[_Block] = []
        self.depths: list[int] = []  # the last block before each halving of the side: maps are taken there
        channels = _STEM
        for number, (count, kernel, stride, expansion, width) in enumerate(_STAGES):
            fixed = number in (0, len(_STAGES) - 1)
            out_channels = _in_eights(width * wide)
            if stride > 1 and number > 1:
                self.depths.append(len(blocks) - 1)
            for index in range(count if fixed else math.ceil(count * deep)):
                blocks.append(_Block(channels, out_channels, kernel, 1 if index else stride, expansion))
                channels = out_channels
        self._blocks = nn.ModuleList(blocks)
        self._conv_head, self._bn1 = _Convolution(channels, WIDTH, 1), _norm(WIDTH)
        self._fc = nn.Linear(WIDTH, _CLASSES)

    def maps(self, images: Tensor, count: int = 4) -> list[Tensor]:
        """Maps (b, C, h, w) at a quarter, an eighth, a sixteenth and a thirty-second of the side; the last are 1280.

        The first `count` of them; nothing deeper is computed.
        """
        found: list[Tensor] = []
        current = functional.relu6(self._bn0(self._conv_stem(images)))
        for number, block in enumerate(self._blocks):
            current = block(current)
            if number in self.depths:
                found.append(current)
            if len(found) == count:
                return found
        return [*found, functional.relu6(self._bn1(self._conv_head(current)))]

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the thousand classes of ImageNet."""
        logits: Tensor = self._fc(self.maps(images)[-1].mean(dim=(2, 3)))
        return logits


def fused(network: EfficientNetLite) -> EfficientNetLite:
    """The network, for use only, with every norm made part of the convolution before it; the same function."""
    network.eval()
    pairs: list[tuple[nn.Module, str, str]] = [(network, "_conv_stem", "_bn0"), (network, "_conv_head", "_bn1")]
    for block in network._blocks:
        pairs += [(block, "_expand_conv", "_bn0"), (block, "_depthwise_conv", "_bn1"), (block, "_project_conv", "_bn2")]
    for owner, convolution, norm in pairs:
        if getattr(owner, norm) is not None:
            setattr(owner, convolution, fuse_conv_bn_eval(getattr(owner, convolution), getattr(owner, norm)))
            setattr(owner, norm, nn.Identity())
    return network


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=_NORM_FLOOR)


def _in_eights(width: float) -> int:
    """The nearest multiple of 8 that is not more than a tenth smaller."""
    nearest = max(8, int(width + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * width else nearest + 8
