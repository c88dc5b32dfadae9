"""Norms of sums of outer products from inner products alone ("ghost" norms, Goodfellow 2015, Li et al. 2021).

|sum_s a_s b_s^T|^2 = sum_{s,t} <a_s, a_t> <b_s, b_t>. Terms of both signs may cancel, so that rounding could call a
large gradient small and let it past the clip. All of it is therefore in double precision, and what rounding may have
taken is added: each of n additions errs by 2^-53 of the terms' sizes, which add up to `gross`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

GramPair = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Inputs and gradients of some units -> two (units, positions, positions) matrices of inner products."""


def ghost_squares(grams: GramPair, inputs: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """(units,) squared norms of each unit's gradient, never too low, and gross ones; arguments have units first."""
    first, second = grams(inputs.double(), gradients.double())
    units, positions = first.shape[:2]
    squares = torch.bmm(first.reshape(units, 1, -1), second.reshape(units, -1, 1)).view(units)
    diagonals = first.diagonal(dim1=1, dim2=2) * second.diagonal(dim1=1, dim2=2)
    gross = diagonals.clamp(min=0).sqrt().sum(1).square()
    # An inner product has no more terms than a unit has numbers; twice, for the rounding of `gross` itself.
    terms = positions**2 + inputs[0].numel() + gradients[0].numel()
    return squares.clamp(min=0) + 2.0**-52 * terms * gross, gross
