"""Normalisation by choice, and the pooling that keeps small images from collapsing."""

from typing import Literal, get_args

from torch import nn

from veilset.core.errors import InputError

Norm = Literal["group", "batch"]

_MOST_GROUPS = 32
_CHANNELS_PER_GROUP = 4


def group_count(channels: int) -> int:
    """Groups for GroupNorm: the most that divide `channels`, at most 32, and at least 4 channels in each.

    A group of one channel on a 1x1 map would be normalised to zero; groups of four keep their information.
    """
    most = max(1, min(_MOST_GROUPS, channels // _CHANNELS_PER_GROUP))
    return next(groups for groups in range(most, 0, -1) if channels % groups == 0)


def make_norm(norm: str, channels: int) -> nn.Module:
    """GroupNorm (mixes no records, so DP-SGD can clip it) or BatchNorm (mixes them) for maps of `channels`."""
    if norm not in get_args(Norm):
        raise InputError(f"Expected norm to be one of {', '.join(get_args(Norm))}, got {norm!r}.")
    if norm == "group":
        return nn.GroupNorm(group_count(channels), channels)
    return nn.BatchNorm2d(channels)


def halvings(size: int, most: int, least_side: int = 3) -> int:
    """How often, at most `most` times, a side of `size` pixels can be halved and keep `least_side` pixels."""
    count = 0
    while count < most and -(-size // 2 ** (count + 1)) >= least_side:
        count += 1
    return count


def stem_stride(size: int, working_side: int = 28) -> int:
    """The power of two that brings `size` pixels near `working_side` without going below it."""
    stride = 1
    while size // (2 * stride) >= working_side:
        stride *= 2
    return stride


def stem(channels: int, width: int, size: int) -> nn.Conv2d:
    """The first convolution: 3x3 on small images, wider and strided on large ones, so that cost stays level."""
    stride = stem_stride(size)
    return nn.Conv2d(channels, width, 2 * stride + 1, stride=stride, padding=stride, bias=False)


def init_relu_network(network: nn.Module) -> None:
    """Draw convolution weights as He et al. (2015) for ReLU networks; zero the biases."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
