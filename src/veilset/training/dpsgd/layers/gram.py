"""Norms of sums of outer products from inner products alone ("ghost" norms, Goodfellow 2015, Li et al. 2021).

|sum_s a_s b_s^T|^2 = sum_{s,t} <a_s, a_t> <b_s, b_t>. Terms of both signs may cancel, so that single precision could
call a large gradient small and let it past the clip. Units whose terms cancel are therefore computed again in double
precision, and no norm is taken to be below what rounding leaves of its terms.
"""

from collections.abc import Callable

import torch
from torch import Tensor

_CANCELLED = 1e-3
_ROUNDING_FLOOR = 1e-10

GramPair = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Inputs and gradients of some units -> two (units, positions, positions) matrices of inner products."""


def ghost_squares(grams: GramPair, inputs: Tensor, gradients: Tensor) -> Tensor:
    """(units,) squared norms of each unit's gradient; both arguments have units first."""
    squares, gross = _contract(*grams(inputs, gradients))
    # Written so that a norm that is not a number is looked at again, too.
    doubtful = torch.nonzero(~(squares > _CANCELLED * gross)).flatten()
    if len(doubtful):
        exact, exact_gross = _contract(*grams(inputs[doubtful].double(), gradients[doubtful].double()))
        squares, gross = squares.double(), gross.double()
        squares[doubtful], gross[doubtful] = exact, exact_gross
    return squares.clamp(min=0) + _ROUNDING_FLOOR * gross


def _contract(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """The norm, and the norm it would have if all terms pointed the same way."""
    units = len(first)
    squares = torch.bmm(first.reshape(units, 1, -1), second.reshape(units, -1, 1)).view(units)
    diagonals = first.diagonal(dim1=1, dim2=2) * second.diagonal(dim1=1, dim2=2)
    return squares, diagonals.clamp(min=0).sqrt().sum(1).square()
