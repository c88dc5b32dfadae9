"""Conditional critics (dpgan, sanitized_gan): images and their classes in, one logit for each image out.

No BatchNorm anywhere, so that the gradient of one record is defined and DP-SGD can clip it. The class enters at the
end, by an inner product of the features with a vector of the class (the projection of Miyato and Koyama, "cGANs with
projection discriminator", 2018): one lookup, whose per-record gradient costs nothing. `ScatteringCritic` and
`KernelCritic` learn that last step only, on features that nobody had to learn; through them their gradients reach the
pixels.
"""

import itertools
import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.core.randomness import derive_seed
from veilset.core.registry import Registry
from veilset.methods.shared.facts import LARGEST_SIDE, SMALLEST_SIDE
from veilset.models.features.embeddings import ImageEmbedding, shrunk, working_side
from veilset.models.features.scattering import Scattering, group_norm
from veilset.models.norms import group_count, halvings

CriticNorm = Literal["group", "layer", "none"]

CRITICS: Registry[Callable[..., nn.Module]] = Registry(
    "critic",
    {
        "dcgan": "veilset.methods.shared.critics:DCGANCritic",
        "resnet": "veilset.methods.shared.critics:ResNetCritic",
        "scattering": "veilset.methods.shared.critics:ScatteringCritic",
    },
)

_SLOPE = 0.2  # of the leaky ReLU, as in DCGAN
_THREE_SCALES_FROM = 48
_CONSTANT = 0.1


class ProjectionHead(nn.Module):
    """Features (b, d) and classes (b,) to logits (b,): a score for all classes plus one of the class."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1)
        self.of_class = nn.Embedding(classes, width)
        nn.init.normal_(self.of_class.weight, std=width**-0.5)

    def forward(self, features: Tensor, classes: Tensor) -> Tensor:
        """One logit for each row."""
        logits: Tensor = self.score(features)[:, 0] + (self.of_class(classes) * features).sum(1)
        return logits


class LinearHeads(nn.Module):
    """Features (b, d) and classes (b,) to logits (b,): one linear map for each class. All start at zero.

    There is no bias: the features of `ScatteringCritic` and `KernelCritic` end in a constant.
    """

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        # All classes' logits are computed and one is kept: the per-record gradient of a linear layer is the cheapest.
        self.maps = nn.Linear(width, classes, bias=False)
        nn.init.zeros_(self.maps.weight)

    def forward(self, features: Tensor, classes: Tensor) -> Tensor:
        """One logit for each row."""
        return torch.gather(self.maps(features), 1, classes[:, None])[:, 0]


class DCGANCritic(nn.Module):
    """Strided convolutions with leaky ReLU (Radford et al. 2016), then a projection head.

    Args:
        size: side of the square image, 16 to 256 pixels.
        channels: colour channels of the image.
        classes: number of classes.
        width: feature maps of the first convolution; doubled at each of the following.
        norm: "group", "layer" (one group) or "none", after all convolutions but the first.
    """

    def __init__(self, size: int, channels: int, classes: int, width: int = 32, norm: CriticNorm = "group") -> None:
        super().__init__()
        _check(size, channels, classes, width)
        stages = halvings(size, most=4, least_side=4)
        layers: list[nn.Module] = []
        before = channels
        for stage in range(stages):
            after = width * 2**stage
            layers.append(nn.Conv2d(before, after, 4, stride=2, padding=1))
            layers += [_norm(norm, after), nn.LeakyReLU(_SLOPE)] if stage else [nn.LeakyReLU(_SLOPE)]
            before = after
        self.stages = nn.Sequential(*layers, nn.Flatten())
        self.head = ProjectionHead(before * (size // 2**stages) ** 2, classes)

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        """One logit for each image: (b, channels, size, size) and (b,) class numbers to (b,)."""
        logits: Tensor = self.head(self.stages(images), classes)
        return logits


class ResNetCritic(nn.Module):
    """Residual blocks that halve the side (Gulrajani et al. 2017, Miyato et al. 2018), then a projection head.

    The arguments are those of `DCGANCritic`.
    """

    def __init__(self, size: int, channels: int, classes: int, width: int = 32, norm: CriticNorm = "group") -> None:
        super().__init__()
        _check(size, channels, classes, width)
        widths = [width * 2**stage for stage in range(halvings(size, most=3, least_side=4) + 1)]
        self.stem = nn.Conv2d(channels, width, 3, padding=1)
        self.blocks = nn.Sequential(*(_DownBlock(before, after, norm) for before, after in itertools.pairwise(widths)))
        self.head = ProjectionHead(widths[-1], classes)

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        """One logit for each image: (b, channels, size, size) and (b,) class numbers to (b,)."""
        maps = functional.leaky_relu(self.blocks(self.stem(images)), _SLOPE)
        logits: Tensor = self.head(maps.mean(dim=(2, 3)), classes)
        return logits


class _DownBlock(nn.Module):
    def __init__(self, before: int, after: int, norm: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = _norm(norm, before), _norm(norm, after)
        self.convolution1 = nn.Conv2d(before, after, 3, padding=1)
        self.convolution2 = nn.Conv2d(after, after, 3, padding=1)
        self.shortcut = nn.Conv2d(before, after, 1, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        inner = self.convolution1(functional.leaky_relu(self.norm1(maps), _SLOPE))
        inner = self.convolution2(functional.leaky_relu(self.norm2(inner), _SLOPE))
        halved: Tensor = functional.avg_pool2d(inner, 2) + self.shortcut(functional.avg_pool2d(maps, 2))
        return halved


class ScatteringCritic(nn.Module):
    """A linear map for each class on fixed wavelet features of length 1.

    `features` may be computed once for images that stay (inside a session, `features=`); `head` is then all that
    DP-SGD has to run.
    """

    def __init__(self, size: int, channels: int, classes: int) -> None:
        super().__init__()
        _check(size, channels, classes, 1)
        self.side = working_side(size)
        self.scattering = Scattering(self.side, channels, J=3 if size >= _THREE_SCALES_FROM else 2)
        self.head = LinearHeads(self.scattering.out_channels * self.scattering.out_size**2 + 1, classes)

    def features(self, images: Tensor) -> Tensor:
        """(b, d) of length 1, each from its own image; gradients flow to the images."""
        return with_constant(self.summed(images))

    def summed(self, images: Tensor) -> Tensor:
        """The features without their constant, for one sum over private images."""
        return functional.normalize(group_norm(self.scattering(shrunk(images, self.side))).flatten(1), dim=1)

    def restored(self, means: Tensor) -> Tensor:
        """Means of the features from means of what was summed: the same."""
        return means

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        """One logit for each image: (b, channels, size, size) and (b,) class numbers to (b,)."""
        logits: Tensor = self.head(self.features(images), classes)
        return logits


class KernelCritic(nn.Module):
    """A linear map for each class on random Fourier features: for each class a function in the space of a kernel.

    Trained as a critic it is the witness of a kernel distance (Gretton et al. 2012), weighted by the loss. The kernel
    sees scattering maps (`ImageEmbedding`), fixed by public pictures and a seed; features have length 1.
    """

    def __init__(self, embedding: ImageEmbedding, classes: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.head = LinearHeads(2 * embedding.get_buffer("frequencies").shape[1] + 1, classes)

    def features(self, images: Tensor) -> Tensor:
        """(b, d) of length 1, each from its own image; gradients flow to the images."""
        return with_constant(self.embedding(images)[1])

    def summed(self, images: Tensor) -> Tensor:
        """The features without their constant, centred by public pictures, for one sum over private images."""
        return self.embedding.summed(images)

    def restored(self, means: Tensor) -> Tensor:
        """Means of the features from means of what was summed."""
        return self.embedding.restored(means)

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        """One logit for each image: (b, channels, size, size) and (b,) class numbers to (b,)."""
        logits: Tensor = self.head(self.features(images), classes)
        return logits


def build_critic(
    name: str,
    *,
    size: int,
    channels: int,
    classes: int,
    width: int | None = None,
    norm: CriticNorm | None = None,
    seed: int = 0,
) -> nn.Module:
    """The critic called `name` in `CRITICS`, its first weights drawn from `seed`; None is its default."""
    builder = CRITICS.get(name)
    wanted: dict[str, object] = {} if width is None else {"width": width}
    wanted |= {} if norm is None else {"norm": norm}
    if wanted and builder is ScatteringCritic:
        raise InputError(f"The scattering critic has no {' and no '.join(wanted)}. Leave it out.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "critic"))
        return builder(size=size, channels=channels, classes=classes, **wanted)


def with_constant(rows: Tensor) -> Tensor:
    """Rows of length 1 with a constant appended, brought to length 1 again: its weight is a bias that costs little."""
    return torch.cat([rows, torch.full_like(rows[:, :1], _CONSTANT)], dim=1) / math.sqrt(1 + _CONSTANT**2)


def _norm(norm: str, channels: int) -> nn.Module:
    if norm not in get_args(CriticNorm):
        raise InputError(f"Expected norm to be one of {', '.join(get_args(CriticNorm))}, got {norm!r}.")
    if norm == "none":
        return nn.Identity()
    return nn.GroupNorm(1 if norm == "layer" else group_count(channels), channels)


def _check(size: int, channels: int, classes: int, width: int) -> None:
    if not SMALLEST_SIDE <= size <= LARGEST_SIDE:
        raise InputError(f"Expected a size of {SMALLEST_SIDE} to {LARGEST_SIDE} pixels, got {size}. Resize the images.")
    if min(channels, classes, width) < 1:
        raise InputError(f"Expected channels, classes and width of at least 1, got {channels}, {classes}, {width}.")
