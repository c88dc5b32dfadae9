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
from veilset.methods.dpaf.layout import Layout, coarse_count, feature_bound, shrinking
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

    The label's embedding joins here (unless `told` is False), at the first layer that the critic does not share with
    the classifier, for which the label is the answer. The last `coarse` numbers of a row, in [-1, 1], are a picture
    that SIN would make forget its brightness: they join at the end, of length at most `brightness` sqrt(m) p.
    """

    def __init__(
        self,
        maps: int,
        side: int,
        classes: int,
        *,
        layers: int,
        width: int,
        embedding: int = 4,
        tanh: bool = False,
        told: bool = True,
        coarse: int = 0,
        brightness: float = 0.0,
    ) -> None:
        super().__init__()
        self.maps, self.side, self.coarse = maps, side, coarse
        self.of_class = nn.Embedding(classes, embedding) if told else None
        self.conv2 = Halving(maps + (embedding if told else 0), width, layers, tanh=tanh)
        self.out_side = side // 2**layers
        own = width * self.out_side**2
        self.width, self.bound = own + coarse, feature_bound(own, brightness)
        self.coarse_scale = brightness * feature_bound(own) / math.sqrt(coarse) if coarse else 0.0

    def forward(self, rows: Tensor, labels: Tensor) -> Tensor:
        """(b, maps * side * side + coarse) and (b,) to (b, width)."""
        read = self.maps * self.side**2
        maps = rows[:, :read].reshape(len(rows), self.maps, self.side, self.side)
        if self.of_class is not None:
            told = self.of_class(labels)[:, :, None, None].expand(-1, -1, self.side, self.side)
            maps = torch.cat([maps, told], dim=1)
        made = simplified_instance_norm(self.conv2(maps)).flatten(1)
        return torch.cat([made, self.coarse_scale * rows[:, read:]], dim=1) if self.coarse else made


class Top(nn.Module):
    """conv3* and FC*: an aggregate, or the row of one image, and its block to a logit.

    Beside FC* each block (a class, or all images) has a linear map of its own (the projection of Miyato and Koyama
    2018), unless `class_maps` is False. It starts at zero: these layers are free, and what sets one class apart need
    not pass through those that all classes share. With `told`, FC* reads an embedding of the class.
    """

    def __init__(
        self,
        width: int,
        side: int,
        blocks: int,
        *,
        layers: int,
        hidden: int = 64,
        tanh: bool = False,
        class_maps: bool = True,
        told: bool = False,
        coarse: int = 0,
    ) -> None:
        super().__init__()
        self.side, self.own = side, width - coarse
        self.maps = self.own // side**2
        self.conv3 = Halving(self.maps, self.maps, layers, tanh=tanh)
        after = self.maps * (side // 2**layers) ** 2 + coarse
        activation: nn.Module = nn.Tanh() if tanh else nn.LeakyReLU(_SLOPE)
        self.told = nn.Embedding(blocks, hidden) if told else None
        self.fc = nn.Sequential(nn.Linear(after + (hidden if told else 0), hidden), activation, nn.Linear(hidden, 1))
        self.of_class = nn.Embedding(blocks, width) if class_maps else None
        if self.of_class is not None:
            nn.init.zeros_(self.of_class.weight)

    def forward(self, rows: Tensor, blocks: Tensor) -> Tensor:
        """(b, width) and (b,) to (b,)."""
        rows = rows / math.sqrt(rows.shape[1])  # of length at most 1, which the learning rate can count on
        read = self.conv3(rows[:, : self.own].reshape(len(rows), self.maps, self.side, self.side)).flatten(1)
        read = torch.cat([read, rows[:, self.own :]], dim=1)
        if self.told is not None:
            read = torch.cat([read, self.told(blocks)], dim=1)
        logits: Tensor = self.fc(read)[:, 0]
        return logits if self.of_class is None else logits + (self.of_class(blocks) * rows).sum(dim=1)


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
        self.shrinking = shrinking(size) if settings.brightness else 0
        coarse = coarse_count(size, channels) if settings.brightness else 0
        below = settings.label_at == "conv2"
        self.features = Features(
            self.conv1.maps,
            side,
            facts.classes,
            layers=layout.conv2,
            width=settings.width,
            tanh=tanh,
            told=below,
            coarse=coarse,
            brightness=settings.brightness,
        )
        self.blocks = settings.blocks(facts.classes)
        self.top = Top(
            self.features.width,
            aggregated,
            self.blocks,
            layers=layout.conv3,
            tanh=tanh,
            class_maps=settings.class_maps,
            told=not below,
            coarse=coarse,
        )

    def block_of(self, labels: Tensor) -> Tensor:
        """The sum that each image belongs to: that of its class, or the one that there is."""
        return labels if self.blocks > 1 else torch.zeros_like(labels)

    def rows(self, images: Tensor) -> Tensor:
        """What conv1 makes of images in [0, 1], (b, maps * side * side), and the coarse picture: what `features` reads.

        Of each image by itself.
        """
        made: Tensor = self.conv1(images).flatten(1)
        if not self.shrinking:
            return made
        return torch.cat([made, 2 * functional.avg_pool2d(images, self.shrinking).flatten(1) - 1], dim=1)


def build_critic(settings: DpafSettings, facts: PublicFacts, seed: int) -> AggregatingCritic:
    """The critic, its first weights drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "aggregating critic"))
        return AggregatingCritic(settings, facts)
