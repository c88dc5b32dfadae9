"""Images to start from, batch by batch and without end (evolve, imgsyn, pldk). None of them is private."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.core.randomness import numpy_generator, torch_generator
from veilset.core.records import Labels, Records
from veilset.data import pixels
from veilset.data.procedural_images import drawn_patterns
from veilset.data.tensors import as_floats
from veilset.methods.shared.choices import Start, Variation
from veilset.methods.shared.variations import crops, vary

Batch = Callable[[int, int], Tensor]
"""From the number of a batch and its size to images in [0, 1], (size, C, H, W); the same numbers, the same images."""

# Noise of deviation 1 around 0, as in the paper, seen as pixels: three deviations reach black and white.
_NOISE_RANGE = 6.0
_LARGEST_DRAWN_SIDE = 64


def starting_images(
    kind: Start, shape: tuple[int, int, int], public: Records | None, *, variation: Variation, blur: int, seed: int
) -> Batch:
    """Batches of starting images of `shape` (height, width, channels).

    Args:
        kind: public images, Gaussian noise, low-passed Gaussian noise, or drawn patterns.
        shape: of the images wanted; public images are resized, and made grey or coloured.
        public: needed for "public".
        variation: of public images and drawn patterns. Without any, images past the public set's size are turned.
        blur: side of the low-pass kernel, odd.
        seed: of all of it.
    """
    if kind == "public":
        if public is None or len(public.labels) == 0:
            raise InputError("To start from public images, pass --public, for example --public builtin:photos.")
        return _public(public, shape, variation, seed)
    height, width, channels = shape

    def batch(number: int, size: int) -> Tensor:
        coins = torch_generator(seed, f"start {number}")
        if kind == "drawn":
            side = min(_LARGEST_DRAWN_SIDE, max(height, width))
            drawn = drawn_patterns(size, side, channels, coins)[torch.randperm(size, generator=coins)]
            return vary(_resized(drawn, height, width), variation, coins)
        noise = torch.randn(size, channels, height, width, generator=coins)
        if kind == "filtered_noise":
            noise = _low_passed(noise, blur)
        return (noise / _NOISE_RANGE + 0.5).clamp(0, 1)

    return batch


def public_pictures(public: Records, shape: tuple[int, int, int], rows: np.ndarray) -> Tensor:
    """Public images of these rows in `shape`, as floats in [0, 1], (b, C, H, W)."""
    height, width, channels = shape
    images = pixels.resize(pixels.to_channels(public.read(np.sort(rows)), channels), height, width)
    return as_floats(torch.from_numpy(np.array(images)))


def rows_of_classes(wanted: Labels, labels: Labels) -> NDArray[np.int64]:
    """For each wanted label the next row of that class, from the first again when they run out."""
    rows = np.zeros(len(wanted), dtype=np.int64)
    for label in np.unique(wanted):
        own = np.flatnonzero(labels == label)
        if len(own) == 0:
            raise InputError(f"There is no image of class {label} to start from.")
        rows[wanted == label] = np.resize(own, int((wanted == label).sum()))
    return rows


def balanced_choice(
    soft_labels: Tensor, count: int, coins: np.random.Generator, shares: Tensor | None = None
) -> NDArray[np.int64]:
    """Rows drawn without repetition, each in proportion to what it adds to the classes that have little.

    The weight of a row is the sum of its probabilities, each over its class' total; the draw is that of Efraimidis and
    Spirakis (2006). With `shares`, classes come out by these instead of even.
    """
    soft = soft_labels.double().numpy()
    parts = soft / soft.sum(axis=0).clip(1e-12)
    weights = parts.sum(axis=1) if shares is None else parts @ shares.double().numpy()
    return np.sort(np.argsort(coins.exponential(size=len(soft)) / weights)[:count])


def _public(public: Records, shape: tuple[int, int, int], variation: Variation, seed: int) -> Batch:
    total = len(public.labels)

    def batch(number: int, size: int) -> Tensor:
        rows = np.arange(number * size, (number + 1) * size)
        rounds = rows // total
        orders = {int(r): numpy_generator(seed, f"public order {r}").permutation(total) for r in np.unique(rounds)}
        chosen = np.array([orders[int(r)][row % total] for r, row in zip(rounds, rows, strict=True)])
        if variation == "crops":
            pictures = public_pictures(public, _roomy(public, shape), chosen)
            return crops(pictures, shape[:2], torch_generator(seed, f"start {number}"))
        images = public_pictures(public, shape, chosen)
        repeated = variation == "none" and number * size >= total
        return vary(images, "turned" if repeated else variation, torch_generator(seed, f"start {number}"))

    return batch


def _roomy(public: Records, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """The shape that parts are cut from: the public images' own, but at most twice what is wanted, and no less."""
    height, width, channels = shape
    have = min(public.shape[0] / height, public.shape[1] / width)
    times = min(2.0, max(1.0, have))
    return round(times * height), round(times * width), channels


def _low_passed(noise: Tensor, side: int) -> Tensor:
    """Gaussian blur with a kernel of `side` pixels, brought back to deviation 1."""
    axis = torch.arange(side) - (side - 1) / 2
    deviation = 0.3 * ((side - 1) / 2 - 1) + 0.8  # the usual rule for a kernel's size
    line = torch.exp(-0.5 * (axis / deviation).square())
    line = line / line.norm()  # sums of squares stay, so the deviation does
    channels = noise.shape[1]
    padded = functional.pad(noise, (side // 2,) * 4, mode="circular")
    across = functional.conv2d(padded, line.reshape(1, 1, 1, -1).repeat(channels, 1, 1, 1), groups=channels)
    return functional.conv2d(across, line.reshape(1, 1, -1, 1).repeat(channels, 1, 1, 1), groups=channels)


def _resized(images: Tensor, height: int, width: int) -> Tensor:
    if images.shape[-2:] == (height, width):
        return images
    return functional.interpolate(images, (height, width), mode="bilinear", antialias=True)
