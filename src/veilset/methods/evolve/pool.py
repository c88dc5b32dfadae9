"""Generators of public images or drawn patterns: as they are, changed, mixed, or moved along principal directions."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.core.randomness import numpy_generator, torch_generator
from veilset.core.records import Records
from veilset.data.procedural_images import drawn_patterns
from veilset.data.tensors import as_bytes, as_floats
from veilset.methods.evolve.features import Features, features_of
from veilset.methods.shared.starting_images import public_pictures
from veilset.models.features.code import principal_directions
from veilset.models.generators.eigen import EigenGenerator
from veilset.training.augment import AugmentConfig, augment

_LARGEST_DRAWN_SIDE = 64
_FEWEST_PICTURES = 16
_NEIGHBOURS = 0.02  # of the pool, at the degree 1: what counts as similar to an image
_REPLACED = 0.3  # share of images that become their neighbour, at the degree 1
_MOST_DIRECTIONS = 256
_EIGEN_STEP = 0.7  # in deviations of a direction, at the degree 1
_AT_ONCE = 500


def pool_pictures(public: Records | None, shape: tuple[int, int, int], most: int, seed: int) -> Tensor:
    """At most so many public images of `shape`, chosen by the seed, or drawn patterns where there are none: 8 bits."""
    height, width, channels = shape
    if public is None:
        side = min(_LARGEST_DRAWN_SIDE, max(height, width))
        coins = torch_generator(seed, "evolve patterns")
        drawn = drawn_patterns(most, side, channels, coins)[torch.randperm(most, generator=coins)]
        if (side, side) != (height, width):
            drawn = functional.interpolate(drawn, (height, width), mode="bilinear", align_corners=False)
        return as_bytes(drawn)
    if len(public.labels) < _FEWEST_PICTURES:
        raise InputError(f"Expected at least {_FEWEST_PICTURES} public images, got {len(public.labels)}.")
    order = numpy_generator(seed, "evolve public images").permutation(len(public.labels))[:most]
    pictures = as_bytes(public_pictures(public, shape, order.astype(np.int64)))
    # Rows were read in the order of the file, which may be that of classes.
    return pictures[torch.randperm(len(pictures), generator=torch_generator(seed, "evolve order"))]


class PoolGenerator:
    """Pictures of a pool; a variation is a changed copy, mixed with a picture of the pool that is similar."""

    def __init__(self, pictures: Tensor, features: Features, *, mixing: float, flip: bool, device: str) -> None:
        self._pictures, self._features, self._device = pictures, features, device
        self._mixing, self._flip = mixing, flip
        parts = torch.split(pictures, _AT_ONCE)
        self._rows = torch.cat([features_of(features, as_floats(part), device) for part in parts]) if mixing else None

    def random(self, labels: Tensor, seed: int) -> Tensor:
        """Pictures of the pool, none twice before all were taken."""
        return as_floats(self._pictures[_taken(len(self._pictures), len(labels), seed)])

    def vary(self, images: Tensor, degree: float, seed: int) -> Tensor:
        """Mixed with a neighbour, then turned, moved, stretched and lit otherwise, as far as the degree says."""
        coins = torch_generator(seed, "evolve variations")
        if self._rows is not None:
            images = self._mixed(images, self._rows, degree, coins)
        return torch.cat([augment(part, _changes(degree, self._flip), coins) for part in torch.split(images, _AT_ONCE)])

    def _mixed(self, images: Tensor, rows: Tensor, degree: float, coins: torch.Generator) -> Tensor:
        near = max(1, round(_NEIGHBOURS * degree * len(rows)))
        found = torch.cat(
            [
                (part @ rows.T).topk(near, dim=1).indices
                for part in torch.split(features_of(self._features, images, self._device), _AT_ONCE)
            ]
        )
        chosen = found.gather(1, torch.randint(0, near, (len(images), 1), generator=coins))[:, 0]
        others = as_floats(self._pictures[chosen])
        weight = self._mixing * degree * torch.rand(len(images), 1, 1, 1, generator=coins)
        replaced = torch.rand(len(images), 1, 1, 1, generator=coins) < _REPLACED * self._mixing * degree
        return torch.lerp(images, others, torch.where(replaced, 1.0, weight))


class EigenPool:
    """Pictures of a pool along their principal directions; a variation is a step in all of them."""

    def __init__(self, pictures: Tensor, *, flip: bool) -> None:
        self._pictures, self._flip = pictures, flip
        flat = as_floats(pictures).flatten(1)
        mean = flat.mean(dim=0)
        count = min(_MOST_DIRECTIONS, flat.shape[1], len(flat) - 1)
        variances, directions = principal_directions(flat - mean, count)
        height, width, channels = pictures.shape[1:]
        self._network = EigenGenerator(height, channels, count, 1, width)
        self._network.mean.copy_(mean)
        self._network.directions.copy_(directions)
        self._network.deviations.copy_(variances.sqrt())

    def random(self, labels: Tensor, seed: int) -> Tensor:
        """Pictures of the pool, as far as the directions show them."""
        chosen = self._pictures[_taken(len(self._pictures), len(labels), seed)]
        shown: Tensor = self._network(self._network.encode(as_floats(chosen)))
        return shown

    def vary(self, images: Tensor, degree: float, seed: int) -> Tensor:
        """A random step, in every direction by its own deviation, and half of the images mirrored, where wanted."""
        coins = torch_generator(seed, "evolve variations")
        if self._flip:
            mirrored = torch.rand(len(images), 1, 1, 1, generator=coins) < 0.5
            images = torch.where(mirrored, images.flip(3), images)
        w = self._network.encode(images)
        step = torch.randn(w.shape, generator=coins) * self._network.deviations
        moved: Tensor = self._network(w + _EIGEN_STEP * degree * step)
        return moved


def _taken(count: int, wanted: int, seed: int) -> Tensor:
    coins = torch_generator(seed, "evolve random")
    rounds = -(-wanted // count)
    return torch.cat([torch.randperm(count, generator=coins) for _ in range(rounds)])[:wanted]


def _changes(degree: float, flip: bool) -> AugmentConfig:
    return AugmentConfig(
        shift=0.12 * degree,
        rotation=25.0 * degree,
        scale=0.25 * degree,
        shear=0.25 * degree,
        erase=0.0,
        contrast=0.4 * degree,
        brightness=0.1 * degree,
        noise=0.0,
        flip=flip,
    )
