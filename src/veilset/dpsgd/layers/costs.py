"""What each way to a norm costs, in nanoseconds of the two-core machine it was fitted on (benchmarks/engine.py).

Only the order matters. The choice is a function of shapes, never of a stopwatch, so that a seed gives the same bits.
"""

_FLOPS = 200.0  # per nanosecond, in a large convolution or matrix product
_DOUBLE_FLOPS = 80.0  # per nanosecond, in a large matrix product in double precision
_SMALL_FLOPS = 150.0  # per nanosecond, in a batch of small matrix products
_COPY = 0.8  # to gather one number of a window
_WRITE = 2.0  # to write one number of a per-unit gradient and to add it up in double precision
_GROUPED_WRITE = 4.5  # the same through a convolution with many groups, which reorders weights
_SHIFT = 1.0  # to add one entry of a shifted Gram matrix


def product_cost(units: int, positions: int, weights: int) -> float:
    """What a plain backward pass spends on the weights."""
    return 2.0 * units * positions * weights / _FLOPS


def exact_product_cost(units: int, positions: int, weights: int, copied: int = 0) -> float:
    """The weighted sum as one product in double precision, for which `copied` numbers are gathered at each position."""
    return 2.0 * units * positions * weights / _DOUBLE_FLOPS + 2 * _COPY * units * positions * copied


def written_cost(units: int, positions: int, weights: int) -> float:
    """One small product per unit, written out."""
    return 2.0 * units * positions * weights / _SMALL_FLOPS + _WRITE * units * weights


def ghost_cost(units: int, grams: list[tuple[int, int]], shifts: int = 0) -> float:
    """Gram matrices of (positions, width), and `shifts` additions of the last one's shape."""
    products = sum(2.0 * units * positions**2 * width / _DOUBLE_FLOPS for positions, width in grams)
    return products + _SHIFT * shifts * units * grams[-1][0] ** 2


def windows_cost(units: int, positions: int, copied: int, weights: int) -> float:
    """`copied` numbers gathered for each position, then one small product per unit."""
    return _COPY * units * positions * copied + written_cost(units, positions, weights)


def grouped_cost(units: int, positions: int, weights: int, *, aligned: bool) -> float:
    """A convolution whose groups are the units; slow where channels do not fill vector registers."""
    product = product_cost(units, positions, weights)
    return (product if aligned else 4 * product + 1e5) + _GROUPED_WRITE * units * weights
