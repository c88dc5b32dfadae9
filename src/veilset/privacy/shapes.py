"""Functions of rows, called with a fixed number of rows at a time.

The last bits of a row's result may change with the number of rows beside it, because kernels are chosen by shape. One
unit more would then move the rows of all others by a little. So a function that sees private rows is called with the
same shape each time; the last batch is filled up with zeros, and what comes of those is dropped.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor


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
