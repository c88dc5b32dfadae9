"""Whether an account may take one more run, when people choose each run after seeing the results of the last.

PLD composition is proved for settings fixed in advance, so it prices the first plan of an account: nothing was seen
before it. From the second plan on a filter decides: it adds up what plans cost in a way that holds under fully adaptive
choice, and refuses what would pass an allowance that follows from the limit alone.

1. Gaussian filter. A plan of full sums is mu-Gaussian-DP, and plans whose mu^2 add up to at most m^2 are together
   m-Gaussian-DP, whoever chose them and why (Smith and Thakurta 2022, "Fully adaptive composition for Gaussian
   differential privacy"; Koskela, Tobaben and Honkela 2022, "Individual privacy accounting with Gaussian differential
   privacy"). The price of m in epsilon and delta is exact.
2. Renyi filter. The total is kept at one order, fixed by the limit (Feldman and Zrnic 2021, "Individual privacy
   accounting via a Renyi filter", Theorem 4.3). It takes plans of every kind and costs 6 to 8 % of epsilon more.

A release of another account that enters a run counts as a plan before that run's own: its results were seen.

Which of them judges an account is fixed by its first plan. One that begins with sampled steps has the Renyi filter. One
that begins with full sums has the Gaussian filter while all plans are of full sums, with nine tenths of delta, and the
Renyi filter with the last tenth once a plan samples: docs/explanation/design.md has the argument.

All of this is for a limit that was fixed before anything was seen. What holds otherwise is told by `bound_of`: many
limits that are fixed in advance, of which results may choose one.
"""

import math
from collections.abc import Sequence

from veilset.privacy.accounting import epsilon_of, gaussian_delta, gaussian_precision, worst_renyi
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event

# Of delta, for accounts that begin with full sums and go on with sampled steps.
_KEPT = 0.1
# The epsilons of which results may choose one, each with an equal part of delta: from 0.01 to 125.
_BOUNDS = tuple(0.01 * 1.1**step for step in range(100))
# Orders at which a running total may be judged. One is picked from the limit alone, before any run.
_ORDERS = tuple(1 + x / 10 for x in range(1, 100)) + tuple(range(11, 64)) + (128, 256, 512, 1024)
_ROUNDING = 1e-9


def fits_account(
    spent: Sequence[Sequence[Event]], wanted: Sequence[Event], limit: Budget, *, knows_gaussians: bool = True
) -> bool:
    """Whether an account that spent the plans `spent` may also spend `wanted`.

    An account that was opened before there was the Gaussian filter does not know it, and stays with the other.

    Privacy: all results of an account together are (epsilon, delta)-DP at its limit, for any adaptive choice of plans.
    """
    plans = (*spent, wanted)
    if len(_chosen_apart(plans)[0]) < 2:
        return epsilon_of(wanted, limit.delta) <= limit.epsilon
    return _pass_filter(plans, limit.epsilon, limit.delta, knows_gaussians=knows_gaussians)


def bound_of(plans: Sequence[Sequence[Event]], delta: float, *, knows_gaussians: bool = True) -> float | None:
    """An epsilon of all plans together for any adaptive choice of them, where no limit was fixed first; None above 125.

    It is the smallest of a hundred epsilons, each a tenth larger than the last, whose filter with a hundredth of delta
    takes the plans.

    Privacy: P(S) is at most the integral over S of e^bound dQ, plus delta, for any set S of results. Courses of events
    that end with one bound are also courses of an analyst who is stopped by the filter of that bound alone.
    """
    low, high = -1, len(_BOUNDS)
    while high - low > 1:
        middle = (low + high) // 2
        fits = _pass_filter(plans, _BOUNDS[middle], delta / len(_BOUNDS), knows_gaussians=knows_gaussians)
        low, high = (low, middle) if fits else (middle, high)
    return _BOUNDS[high] if high < len(_BOUNDS) else None


def _pass_filter(plans: Sequence[Sequence[Event]], epsilon: float, delta: float, *, knows_gaussians: bool) -> bool:
    chosen, firsts = _chosen_apart(plans)
    if not knows_gaussians or all(gaussian_precision(plan) is None for plan in firsts):
        return _fits_renyi(chosen, epsilon, delta)
    precisions = [found for plan in chosen if (found := gaussian_precision(plan)) is not None]
    if len(precisions) == len(chosen):
        return sum(precisions) <= gaussian_allowance(epsilon, (1 - _KEPT) * delta)
    # An account that began with samples may learn of older full sums only now, from a release that enters a run. So
    # far all of delta was at the order of all of delta, and it stays within that, too.
    return _fits_renyi(chosen, epsilon, _KEPT * delta) and _fits_renyi(chosen, epsilon, delta)


def _chosen_apart(plans: Sequence[Sequence[Event]]) -> tuple[list[list[Event]], list[list[Event]]]:
    """What was chosen at one time each, and what of it may have come first.

    A release that enters a run is older than the run's own events, which may have been chosen by what it shows; in what
    order several were made, nobody knows here. Plans without events choose nothing.
    """
    carried, own = [], []
    for plan in plans:
        by_source: dict[str | None, list[Event]] = {}
        for event in plan:
            by_source.setdefault(event.source, []).append(event)
        own += [by_source.pop(None)] if None in by_source else []
        carried += list(by_source.values())
    return [*carried, *own], [*carried, *own[:1]]


def gaussian_allowance(epsilon: float, delta: float) -> float:
    """The largest mu^2 whose Gaussian costs at most (epsilon, delta), rounded down."""
    low, high = 0.0, 1.0
    while gaussian_delta(1 / high, epsilon) <= delta:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(1 / middle, epsilon) <= delta else (low, middle)
    return low**2 * (1 - _ROUNDING)


def _fits_renyi(plans: Sequence[Sequence[Event]], epsilon: float, delta: float) -> bool:
    order, allowance = renyi_allowance(epsilon, delta)
    return sum(worst_renyi(plan, order) for plan in plans) <= allowance


def renyi_allowance(epsilon: float, delta: float) -> tuple[float, float]:
    """The order whose allowance buys the most precise Gaussian, and that allowance in Renyi DP."""

    def allowance(order: float) -> float:
        # Conversion of Canonne, Kamath and Steinke 2020, Proposition 12, solved for the Renyi part.
        return epsilon - math.log1p(-1 / order) + math.log(delta * order) / (order - 1)

    best = max(_ORDERS, key=lambda order: allowance(order) / order)
    return best, allowance(best)
