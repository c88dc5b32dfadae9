"""Clipping and sums that keep their word in spite of rounding.

A unit's contribution c is a fixed vector: float32 numbers that depend on this unit alone (passes have a fixed shape,
and probe.py checks that place and company change no bit), times a factor that makes |c| <= C (1 - MARGIN).
Sums are taken in float64. The claim is that two sums that differ by one unit are no further apart than C.

Proof. Let u = 2^-53, B <= 2^20 units in a batch and R of them in a pass. (The privacy layer refuses batches of more
than 2^19 on average, so that a larger one is beyond all odds.) Write S for an exact sum and T for what is computed; one
unit more moves T by at most |c| + |T - S| + |T' - S'|. Each of the last two terms is the sum of

- written gradients: a dot product of R terms errs by (R + 2) u times the sum of their sizes, so B (R + 2) u C in all;
- products of two sides: R and all positions of a unit make K <= 2^13 terms (`may_multiply`), whose sizes add up to
  "gross" instead of |c|. `clip_factors` keeps factor * gross <= 2^6 C, so the error is at most B (K + 3) u 2^6 C, about
  2^-14 C;
- adding up B / R passes: (B / R) u B C, at most 2^-13 C;
- the integer grid on which the privacy layer adds noise (privacy/mechanisms/dpsgd_steps.py): sqrt(d) 2^-31 C, below
  2^-15 C for d < 2^32 weights.

Twice that is less than 2^-11 C. The norm that is clipped is never below the true one: the root of a float32 sum of 64
squares is off by 2e-6 at most, ghost norms are in float64 with a bound on their rounding, and what is lost to underflow
is below 1e-15, far inside the margin of every clip norm that is allowed.
"""

import torch
from torch import Tensor

MARGIN = 2.0**-11  # the share of the clip norm that is left for rounding
STABILISER = 0.01  # what automatic clipping adds to a norm, unless told
_MOST_TERMS = 2**13
_GROSS = 2.0**6
_BLOCK = 64  # squares added in float32
_ABOVE = 1 + 2.0**-18  # more than such a sum and its root are off
_PIECE = 2**16  # float64 numbers at a time: half a megabyte stays in the cache


def may_multiply(terms: int) -> bool:
    """Whether a sum of products may have so many terms."""
    return terms <= _MOST_TERMS


def clip_factors(
    squares: Tensor, gross: Tensor, clip_norm: float, *, automatic: bool = False, stabiliser: float = STABILISER
) -> Tensor:
    """What each unit's gradient is multiplied by, given its squared norm; a norm that is not finite gives zero.

    C is the clip norm less `MARGIN`.
    Automatic clipping gives C / (|g| + stabiliser) (Bu et al. 2022, "Automatic clipping"), else C / max(|g|, C).
    `gross` is the square of what the norm would be if no terms of the products cancelled.
    """
    norms, clip_norm = torch.maximum(squares, gross / _GROSS**2).sqrt() * _ABOVE, clip_norm * (1 - MARGIN)
    factors = clip_norm / (norms + stabiliser) if automatic else clip_norm / norms.clamp(min=clip_norm)
    return torch.where(torch.isfinite(norms), factors, 0.0)


def row_squares(rows: Tensor) -> Tensor:
    """(units,) squared norms of float32 rows (units, d), in float64."""
    whole = rows.shape[1] // _BLOCK * _BLOCK
    rest = rows[:, whole:].double().square().sum(1)
    if not whole:
        return rest
    blocks: Tensor = torch.linalg.vector_norm(rows[:, :whole].reshape(len(rows), -1, _BLOCK), dim=2)
    return blocks.double().square_().sum(1) + rest


def row_sum(rows: Tensor, factors: Tensor) -> Tensor:
    """The sum of rows (units, d) times their factors, in float64; a factor of zero drops whatever the row holds."""
    width, dropped = max(1, _PIECE // len(rows)), torch.nonzero(factors == 0).flatten()
    total = rows.new_empty(rows.shape[1], dtype=torch.float64)
    buffer = rows.new_empty(len(rows), width, dtype=torch.float64)
    for start in range(0, rows.shape[1], width):
        here = slice(start, min(start + width, rows.shape[1]))
        piece = buffer[:, : here.stop - start].copy_(rows[:, here])
        if len(dropped):
            piece.index_fill_(0, dropped, 0.0)
        torch.mv(piece.t(), factors, out=total[here])
    return total


def in_double(side: Tensor, factors: Tensor, *, scale: bool = False) -> Tensor:
    """One side (units, ...) of products in float64, times the factors if asked; dropped units are zero."""
    exact = side.double()
    exact = exact.clone() if exact is side else exact
    exact.index_fill_(0, torch.nonzero(factors == 0).flatten(), 0.0)
    return exact.mul_(factors.view(-1, *(1,) * (side.ndim - 1))) if scale else exact


def block_sum(rows: Tensor, blocks: Tensor, count: int, clip_norm: float) -> Tensor:
    """(count, d) sums in float64 of rows (b, d), each clipped and added to its block.

    Privacy: unit one row; relation add/remove-one; sensitivity `clip_norm` in L2 over the whole result, once it is on
    the grid; assumes that a row depends on its own unit alone. A row that is not finite counts as zero.
    """
    total = rows.new_zeros(count, rows.shape[1], dtype=torch.float64)
    for part, own in zip(torch.split(rows, 256), torch.split(blocks, 256), strict=True):
        squares = part.double().square().sum(1)
        factors = clip_factors(squares, torch.zeros_like(squares), clip_norm)
        total.index_add_(0, own, in_double(part, factors, scale=True))
    return total
