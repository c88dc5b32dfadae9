"""The critic of DPAF: two convolutional parts, a sum over many images, and a part that reads sums only.

DPAF (its appendix, A.2, A.5 and A.10) writes a layout as Cx-Cy-Cz: x layers conv1, y layers conv2*, z layers conv3*,
and two linear layers FC*. Each layer halves the side. Between conv2* and conv3* stand the simplified instance norm,
SIN, which gives every map the same length, and the sum over images, which no network here does: a mechanism does
it, with noise.
"""

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.core.randomness import derive_seed
from veilset.models.features.scattering import Scattering, group_norm

_SLOPE = 0.2
_EPSILON = 1e-5
_ANGLES = 4
_SMALLEST_SIDE = 2


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How many layers each part has."""

    conv1: int
    conv2: int
    conv3: int

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """Read "C2-C1-C0"; an x in the place of a C and its number is none, as in the paper."""
        found = re.fullmatch(r"C(\d)-C(\d)-(?:C(\d)|x)", text)
        if found is None or found[1] == "0" or found[2] == "0":
            raise InputError(
                f"Expected a layout such as C2-C1-x or C2-C2-C1, with layers in conv1 and in conv2*, got {text!r}."
            )
        return cls(conv1=int(found[1]), conv2=int(found[2]), conv3=int(found[3] or 0))

    def sides(self, size: int) -> tuple[int, int, int]:
        """The side of the maps after conv1, conv2* and conv3*; a layout that does not fit the image raises."""
        after, sides = size, []
        for layers in (self.conv1, self.conv2, self.conv3):
            after = after // 2**layers
            sides.append(after)
        if after < _SMALLEST_SIDE:
            layers = self.conv1 + self.conv2 + self.conv3
            raise InputError(
                f"A layout of {layers} layers leaves maps of {after} pixels of a {size}-pixel image; expected at least "
                f"{_SMALLEST_SIDE}. Each layer halves the side: take at most "
                f"{(size // _SMALLEST_SIDE).bit_length() - 1} layers together."
            )
        return sides[0], sides[1], sides[2]


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
        self.bound = math.sqrt(self.width)

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
    """All parts of the critic, their first weights drawn from `seed`, but for the sum between `features` and `top`."""

    def __init__(
        self,
        layout: Layout,
        shape: tuple[int, int, int],
        classes: int,
        *,
        wavelets: bool,
        conv1_width: int,
        width: int,
        tanh: bool,
        seed: int,
    ) -> None:
        super().__init__()
        size, _, channels = shape
        side, aggregated, _ = layout.sides(size)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "aggregating critic"))
            self.conv1: Wavelets | Halving = (
                Wavelets(size, channels, layout.conv1)
                if wavelets
                else Halving(channels, conv1_width, layout.conv1, tanh=tanh)
            )
            self.features = Features(self.conv1.maps, side, classes, layers=layout.conv2, width=width, tanh=tanh)
            self.top = Top(self.features.width, aggregated, classes, layers=layout.conv3, tanh=tanh)
