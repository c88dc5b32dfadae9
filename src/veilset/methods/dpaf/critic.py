"""The critic of DPAF: two convolutional parts, a sum over many images, and a part that reads sums only.

How many layers the parts have is the layout (methods/dpaf/layout.py). Between conv2* and conv3* stand the simplified
instance norm, SIN, which gives every map the same length, and the sum over images, which no network here does: a
mechanism does it, with noise.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.randomness import derive_seed
from veilset.methods.dpaf.config import DpafSettings
from veilset.methods.dpaf.layout import Layout, feature_bound
from veilset.models.features.scattering import Scattering, group_norm
from veilset.privacy.vault import PublicFacts

_SLOPE = 0.2
_EPSILON = 1e-5
_ANGLES = 4


def simplified_instance_norm(maps: Tensor) -> Tensor:
    """Every map of every image standardised, without scale and shift: (b, m, p, p), of length at most sqrt(m) p.

    Each image by itself; a map has mean square v / (v + 1e-5) < 1, so no row is longer.
    """
    return functional.instance_norm(maps, eps=_EPSILON)


class Wavelets(nn.Module):
    """conv1 by formula: scattering maps with two layers of wavelets, which nobody had to learn.

    They are standardised within each image. `layers` is the number of halvings.
    """

    def __init__(self, size: int, channels: int, layers: int) -> None:
        super().__init__()
        self.scattering = Scattering(size, channels, J=layers, L=_ANGLES)
        self.maps = self.scattering.out_channels

    def forward(self, images: Tensor) -> Tensor:
        """(b, channels, size, size) to (b, maps, size / 2**layers, ...)."""
        # One group: maps of little energy must stay small beside those that hold the picture.
        return group_norm(self.scattering(images), 1)


class Halving(nn.Module):
    """Layers that halve the side each: a strided convolution and an activation. No norm, no statistics of others."""

    def __init__(self, before: int, width: int, layers: int, *, tanh: bool) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for layer in range(layers):
            parts.append(nn.Conv2d(before if layer == 0 else width, width, 4, stride=2, padding=1))
            parts.append(nn.Tanh() if tanh else nn.LeakyReLU(_SLOPE))
        self.layers = nn.Sequential(*parts)
        self.maps = width if layers else before

    def forward(self, maps: Tensor) -> Tensor:
        """(b, before, h, w) to (b, maps, h / 2**layers, ...)."""
        halved: Tensor = self.layers(maps)
        return halved


class Classifier(nn.Module):
    """C: conv1, and layers that are thrown away after it is trained."""

    def __init__(self, conv1: nn.Module, maps: int, classes: int, *, tanh: bool) -> None:
        super().__init__()
        self.conv1 = conv1
        activation: nn.Module = nn.Tanh() if tanh else nn.LeakyReLU(_SLOPE)
        pool = nn.Sequential(nn.Conv2d(maps, 2 * maps, 3, padding=1), activation, nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.rest = nn.Sequential(pool, nn.Linear(8 * maps, classes))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (b, classes)."""
        logits: Tensor = self.rest(self.conv1(images))
        return logits


class Features(nn.Module):
    """conv2* and SIN: maps of conv1 and labels to rows of length at most `bound`, one image by itself.

    The label's embedding joins here, at the first layer that the critic does not share with the classifier, for which
    the label is the answer.
    """

    def __init__(
        self, maps: int, side: int, classes: int, *, layers: int, width: int, embedding: int = 4, tanh: bool = False
    ) -> None:
        super().__init__()
        self.maps, self.side = maps, side
        self.of_class = nn.Embedding(classes, embedding)
        self.conv2 = Halving(maps + embedding, width, layers, tanh=tanh)
        self.out_side = side // 2**layers
        self.width = width * self.out_side**2
        self.bound = feature_bound(self.width)

    def forward(self, rows: Tensor, labels: Tensor) -> Tensor:
        """(b, maps * side * side) and (b,) to (b, width)."""
        maps = rows.reshape(len(rows), self.maps, self.side, self.side)
        told = self.of_class(labels)[:, :, None, None].expand(-1, -1, self.side, self.side)
        return simplified_instance_norm(self.conv2(torch.cat([maps, told], dim=1))).flatten(1)


class Top(nn.Module):
    """conv3* and FC*: an aggregate, or the row of one image, and its class to a logit.

    Beside FC* each class has a linear map of its own (the projection of Miyato and Koyama 2018), which starts at zero:
    these layers are free, and what sets one class apart need not pass through those that all classes share.
    """

    def __init__(
        self, width: int, side: int, classes: int, *, layers: int, hidden: int = 64, tanh: bool = False
    ) -> None:
        super().__init__()
        self.maps, self.side = width // side**2, side
        self.conv3 = Halving(self.maps, self.maps, layers, tanh=tanh)
        after = self.maps * (side // 2**layers) ** 2
        activation: nn.Module = nn.Tanh() if tanh else nn.LeakyReLU(_SLOPE)
        self.fc = nn.Sequential(nn.Linear(after, hidden), activation, nn.Linear(hidden, 1))
        self.of_class = nn.Embedding(classes, width)
        nn.init.zeros_(self.of_class.weight)

    def forward(self, rows: Tensor, labels: Tensor) -> Tensor:
        """(b, width) and (b,) to (b,)."""
        rows = rows / math.sqrt(rows.shape[1])  # of length at most 1, which the learning rate can count on
        maps = self.conv3(rows.reshape(len(rows), self.maps, self.side, self.side))
        own = (self.of_class(labels) * rows).sum(dim=1)
        logits: Tensor = self.fc(maps.flatten(1))[:, 0] + own
        return logits


class AggregatingCritic(nn.Module):
    """All parts of the critic but for the sum between `features` and `top`."""

    def __init__(self, settings: DpafSettings, facts: PublicFacts) -> None:
        super().__init__()
        size, _, channels = facts.shape
        layout, tanh = Layout.parse(settings.layout), settings.tanh
        side, aggregated, _ = layout.sides(size)
        self.conv1: Wavelets | Halving = (
            Wavelets(size, channels, layout.conv1)
            if settings.conv1 == "wavelets"
            else Halving(channels, settings.conv1_width, layout.conv1, tanh=tanh)
        )
        self.features = Features(
            self.conv1.maps, side, facts.classes, layers=layout.conv2, width=settings.width, tanh=tanh
        )
        self.top = Top(self.features.width, aggregated, facts.classes, layers=layout.conv3, tanh=tanh)

    def rows(self, images: Tensor) -> Tensor:
        """What conv1 makes of images in [0, 1], (b, maps * side * side): what `features` reads."""
        made: Tensor = self.conv1(images).flatten(1)
        return made


def build_critic(settings: DpafSettings, facts: PublicFacts, seed: int) -> AggregatingCritic:
    """The critic, its first weights drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "aggregating critic"))
        return AggregatingCritic(settings, facts)
