"""What the votes of PATE's teachers cost on the data at hand: the analysis of Papernot et al. 2018, not for release.

"Scalable private learning with PATE", Theorem 6 and Proposition 7 (GNMax). Where teachers agree, the noisy maximum
hardly depends on any of them, and costs less than its noise alone says. How much less is read from the exact votes.

Privacy: the result is computed from private votes without noise. It is a measurement for the data holder, it may not be
printed in a release, and it is no guarantee of differential privacy, which speaks of all datasets
(docs/methods/pate.md).
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp

from veilset.core.errors import InputError

_Real = NDArray[np.float64]

_ORDERS: _Real = np.concatenate([1 + np.arange(1, 100) / 10, np.arange(11, 64), np.logspace(6, 11, 60, base=2.0)])


def vote_epsilons(counts: NDArray[np.int64], deviation: float, delta: float) -> tuple[float, float]:
    """The epsilon of releasing the largest of each row's noisy counts: for any dataset, and for this one.

    Both come from Renyi DP, so that they can be compared; the first is a little above the exact one of the ledger.

    Args:
        counts: exact votes of each query for each class, (queries, classes).
        deviation: of the Gaussian noise on each count.
        delta: of both.
    """
    if counts.ndim != 2 or counts.shape[1] < 2:
        raise InputError(f"Expected counts (queries, classes) of at least two classes, got shape {counts.shape}.")
    if not (deviation > 0 and 0 < delta < 1):
        raise InputError(f"Expected deviation > 0 and delta between 0 and 1, got {deviation} and {delta}.")
    any_data = len(counts) * _ORDERS / deviation**2
    this_data = np.sum([renyi_cost(log_chance, deviation) for log_chance in log_other_class(counts, deviation)], axis=0)
    return _epsilon(any_data, delta), _epsilon(this_data, delta)


def log_other_class(counts: NDArray[np.int64], deviation: float) -> _Real:
    """For each query, log of a bound on the chance that noise makes another class win (Proposition 7)."""
    ordered = np.sort(counts, axis=1)[:, ::-1].astype(np.float64)
    gaps = ordered[:, :1] - ordered[:, 1:]
    bound: _Real = logsumexp(log_ndtr(-gaps / (deviation * math.sqrt(2))), axis=1)
    return np.minimum(bound, math.log1p(-1 / counts.shape[1]))


def renyi_cost(log_chance: float, deviation: float) -> _Real:
    """Renyi divergence of one query at all orders, from this dataset to any neighbour: Theorem 6 where it holds.

    It is never above that of the noise alone.
    """
    variance = deviation**2
    cost = _ORDERS / variance
    second = deviation * math.sqrt(-log_chance)
    first = second + 1
    if second <= 1:
        return cost
    at_first, at_second = first / variance, second / variance
    slope = second * (math.log1p(1 / (first - 1)) + math.log1p(1 / (second - 1)))
    # The theorem's condition, and that its A is positive.
    if log_chance > (second - 1) * at_second - slope or -log_chance <= at_second:
        return cost
    stays = _log_one_minus(log_chance)
    log_a = stays - _log_one_minus((log_chance + at_second) * (1 - 1 / second))
    log_b = at_first - log_chance / (first - 1)
    less = _ORDERS - 1
    bound = np.logaddexp(stays + less * log_a, log_chance + less * log_b) / less
    return np.where(first > _ORDERS, np.minimum(cost, bound), cost)


def _log_one_minus(log_value: float) -> float:
    """log(1 - exp(log_value)) for log_value < 0."""
    return math.log1p(-math.exp(log_value))


def _epsilon(renyi: _Real, delta: float) -> float:
    """Conversion of Canonne, Kamath and Steinke 2020, Proposition 12."""
    return float(np.min(renyi + np.log1p(-1 / _ORDERS) - np.log(delta * _ORDERS) / (_ORDERS - 1)))
