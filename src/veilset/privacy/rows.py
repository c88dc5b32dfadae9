"""Rows of numbers that depend on their own image to the last bit, and the clip that bounds them.

The last bits of a row's result may change with the number of rows beside it, because kernels are chosen by shape: one
unit more would move the rows of all others, and a search or a vote makes much of a last bit. So a function that sees
private rows is called with one public shape: the last batch is filled up with zeros, which for images is black, and
what comes of those is dropped. At that shape, a row could still depend on its place or, in a library that we do not
know, on its company. Whether it does is tried on random public images, with the threads and the device of this run; if
so, batches get smaller, down to one image.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from veilset.core.errors import VeilsetError
from veilset.privacy.vault import PublicFacts

PerImage = Callable[[Tensor, Tensor], Tensor]
"""uint8 images (b, H, W, C) and labels (b,), or findings (b, F) -> one row of numbers per image (b, d)."""

BATCH = 256  # images of one call
LARGEST_NUMBER = 1e150  # of a row; its square and sums of squares are finite
_UNIT_ROUNDOFF = 2.0**-53


def rows_of(per_image: PerImage, images: Tensor, labels: Tensor) -> Tensor:
    """What `per_image` says of these images, one row for each. Every call of such a function is made here."""
    rows = per_image(images, labels)
    if rows.ndim != 2 or len(rows) != len(images):
        raise VeilsetError(
            f"Expected one row of numbers per image, got the shape {tuple(rows.shape)} for {len(images)} images."
        )
    return rows


def alone(per_image: PerImage, facts: PublicFacts, batch: int = BATCH) -> tuple[PerImage, int]:
    """`per_image` in calls of one shape, so that a row is a function of its own image; and the width of its rows.

    Raises where rows plainly depend on other images. What is passed to the result may have any length.
    """
    size, width = batch, None
    while size > 1 and width is None:
        width = _width_if_alone(per_image, facts, size)
        size = size if width is not None else max(1, size // 4)
    if width is None:  # at every shape the bits move: by rounding, which a batch of one ends, or by mixing images
        width = require_alone(per_image, facts)

    def in_one_shape(images: Tensor, labels: Tensor) -> Tensor:
        batches = fixed_batches((images, labels), size, at_least_one=True)
        return torch.cat([rows_of(per_image, *batch)[:real] for batch, real in batches])

    return in_one_shape, width


def require_alone(per_image: PerImage, facts: PublicFacts) -> int:
    """The width of `per_image`, which must give an image the same numbers, up to rounding, alone and beside others."""
    images, labels = random_images(3, facts)
    with torch.no_grad():
        together = rows_of(per_image, images, labels)
        single = torch.cat([rows_of(per_image, images[i : i + 1], labels[i : i + 1]) for i in range(3)])
    if not torch.allclose(together.double(), single.double(), rtol=1e-3, atol=1e-4 * float(together.abs().max())):
        raise VeilsetError(
            "A row changes with the other images of its batch, so clipping bounds nothing. Treat images alone."
        )
    return together.shape[1]


def below(norm_bound: float, numbers: int) -> float:
    """What to scale vectors of so many numbers to in float64, so that their true norm is at most `norm_bound`.

    Let u = 2^-53 and n = `numbers`. A sum of n squares, added in any order, is low by a factor of at least (1 - u)^n:
    each number takes part in one product and at most n - 1 additions. The root halves that and rounds once more, so a
    norm is low by (n/2 + 2) u at most. The quotient of bound and norm, the product with the row and the quotient by the
    grid's step round once each, and truncation shortens. All of it is below (n + 16) u, which is taken off here.
    Squares that underflow (numbers below 1e-154) do not matter beside a norm bound of 1e-9; squares that overflow make
    the norm infinite and the row zero.
    """
    return norm_bound * (1 - (numbers + 16) * _UNIT_ROUNDOFF)


def clipped(vectors: Tensor, owners: Tensor, clip_norm: float, *, numbers: int) -> Tensor:
    """Float64 vectors (n, d), those of one owner scaled together so that their norm is at most `clip_norm`.

    An owner has at most `numbers` numbers in all of its vectors.
    """
    squares = torch.zeros(int(owners.max()) + 1, dtype=vectors.dtype)
    squares.index_add_(0, owners, squared_lengths(vectors))
    scale = below(clip_norm, numbers) / squares.sqrt().clamp(min=clip_norm)
    return vectors * scale[owners, None]


def squared_lengths(vectors: Tensor) -> Tensor:
    """The sum of the squares of each row of float64 vectors.

    NumPy adds each row by itself and in one order; torch splits a single long row among threads and many rows not.
    """
    return torch.from_numpy(np.add.reduce(np.ascontiguousarray(vectors.square().numpy()), axis=1))


@torch.no_grad()
def _width_if_alone(per_image: PerImage, facts: PublicFacts, size: int) -> int | None:
    """The width of the rows, if images get the same bits elsewhere in a batch of `size`, and beside others."""
    images, labels = random_images(size, facts)
    rows = rows_of(per_image, images, labels)
    turn = size // 2 + 1 if size > 2 else 1  # two images change places
    turned = rows_of(per_image, images.roll(turn, 0), labels.roll(turn, 0)).roll(-turn, 0)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(1))
    mixed, beside = images[order], torch.arange(size) % 2 == 0
    mixed[beside] = 0
    elsewhere = rows_of(per_image, mixed, labels[order])
    same = _equal(rows, turned) and _equal(rows[order][~beside], elsewhere[~beside])
    return rows.shape[1] if same else None


def _equal(first: Tensor, second: Tensor) -> bool:
    return bool(((first == second) | (first.isnan() & second.isnan())).all())


def random_images(count: int, facts: PublicFacts) -> tuple[Tensor, Tensor]:
    """Images and labels to try a function with: classes in turn, or findings of which every image has some."""
    coins = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, *facts.shape), generator=coins, dtype=torch.uint8)
    numbers = torch.arange(count)
    if facts.findings:
        return images, (numbers[:, None] + torch.arange(facts.classes)) % 2
    return images, numbers % facts.classes


def filled(rows: Tensor, size: int) -> Tensor:
    """`rows` in new memory, followed by rows of zeros up to `size`."""
    whole = rows.new_zeros(size, *rows.shape[1:])
    whole[: len(rows)] = rows
    return whole


def fixed_batches(
    sides: tuple[Tensor, ...], size: int, *, at_least_one: bool = False
) -> Iterator[tuple[tuple[Tensor, ...], int]]:
    """Batches of exactly `size` rows of tensors that belong together, and how many of the rows are real.

    Of no rows at all there is no batch or, where somebody needs the shape of a result, one of zeros.
    """
    for start in range(0, max(len(sides[0]), int(at_least_one)), size):
        parts = tuple(side[start : start + size] for side in sides)
        yield tuple(filled(part, size) for part in parts), len(parts[0])


def in_fixed_batches(function: Callable[..., Tensor], sides: tuple[Tensor, ...], size: int) -> Tensor:
    """`function` of all rows, `size` at a time; of no rows at all, an empty result of the right shape."""
    return torch.cat([function(*batch)[:real] for batch, real in fixed_batches(sides, size, at_least_one=True)])
