"""From events to epsilon, and from a budget to the noise that just fits it.

The reference is the privacy loss distribution (PLD) accountant of Google's dp-accounting; Renyi DP is the cross-check.
Sums over the whole vault are Gaussians and compose to one Gaussian exactly, whose epsilon has a closed form
(Balle and Wang 2018, "Improving the Gaussian mechanism for differential privacy", Theorem 8); it is used when nothing
is sampled. Relation everywhere: add/remove-one.
"""

import functools
import itertools
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from veilset.core.errors import BudgetError, InputError
from veilset.privacy.budget import LEAST_DELTA, Budget
from veilset.privacy.events import Event

Accountant = Literal["pld", "rdp"]

# Width of a privacy-loss bucket, in parts of the typical loss of one step. Every width gives an upper bound, whose
# excess falls with the square of the width.
_FINE = 0.02
_COARSE = 0.1
_MOST_BUCKETS = 4e3  # at width 1
_USUAL_DELTA = 1e-5  # for the width of buckets where no delta is asked for
_WIDEST = 1e-3
_ROUGH_ORDERS = (*range(2, 33), 48, 64, 96, 128, 256, 512, 1024)
# A tiny sampling rate may make less noise than this fit on paper; it would protect nobody who is sampled.
_LEAST_NOISE = 0.1


def epsilon_of(events: Sequence[Event], delta: float, accountant: Accountant = "pld") -> float:
    """The epsilon that `events` together cost at `delta`.

    Privacy: an upper bound for any record, events composed in the order and with the settings listed. Of the shards
    of a partition only the worst counts, because a record lies in one of them.
    """
    if not LEAST_DELTA <= delta < 1:
        raise InputError(
            f"Expected delta from {LEAST_DELTA:g} to below 1, got {delta:g}. Below that the accountants' own rounding "
            "is larger than delta."
        )
    price = _pld_epsilon if accountant == "pld" else _rdp_epsilon
    return max((price(world, delta) for world in _worlds(events)), default=0.0)


def delta_of(events: Sequence[Event], epsilon: float) -> float:
    """The delta that `events` together cost at `epsilon`: a bound like `epsilon_of`, of the worst shards.

    At epsilon 0 it is the total variation distance between the releases of two neighbouring datasets.
    """
    return max((_pld_delta(world, epsilon) for world in _worlds(events)), default=0.0)


def _worlds(events: Sequence[Event]) -> Iterable[tuple[Event, ...]]:
    """What one record may have met: everything unsharded, and one shard of each partition."""
    common = tuple(event for event in events if event.partition is None)
    # Partitions of different runs share nothing but perhaps a name: a record has a shard in each of them.
    partitions: dict[tuple[str | None, str], dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        if event.partition is not None and event.shard is not None:
            partitions[event.source, event.partition][event.shard].append(event)
    # Shards with equal costs are one case, so the product below stays small.
    choices = [
        {
            tuple(sorted((e.noise_multiplier, e.sampling_rate, e.count) for e in shard)): tuple(shard)
            for shard in p.values()
        }
        for p in partitions.values()
    ]
    for picks in itertools.product(*(choice.values() for choice in choices)):
        world = common + tuple(itertools.chain.from_iterable(picks))
        if world:
            yield world


def _split(events: Sequence[Event]) -> tuple[float, list[Event]]:
    """The one noise multiplier that all full sums amount to (infinite when there are none), and the sampled events."""
    precision = sum(e.count / e.noise_multiplier**2 for e in events if e.sampling_rate == 1.0)
    combined = 1 / math.sqrt(precision) if precision else math.inf
    return combined, [e for e in events if e.sampling_rate < 1.0]


def _pld_epsilon(events: Sequence[Event], delta: float, width: float = _FINE) -> float:
    combined, sampled = _split(events)
    if not sampled:
        return gaussian_epsilon(combined, delta)
    return float(_pld_accountant(events, delta, width).get_epsilon(delta))


def _pld_delta(events: Sequence[Event], epsilon: float) -> float:
    combined, sampled = _split(events)
    if not sampled:
        return gaussian_delta(combined, epsilon)
    return min(1.0, float(_pld_accountant(events, _USUAL_DELTA, _FINE).get_delta(epsilon)))


def _pld_accountant(events: Sequence[Event], delta: float, width: float) -> Any:
    """The accountant with all events composed; `delta` only says how wide its buckets may be."""
    from dp_accounting import GaussianDpEvent, pld

    combined, sampled = _split(events)
    rough = float(_rdp_accountant(events, _ROUGH_ORDERS).get_epsilon(delta))
    longest = max(rough, *(_largest_loss(event) for event in sampled))
    interval = min(width * _typical_loss(combined, sampled), _WIDEST * max(1.0, rough))
    interval = max(interval, width * longest / _MOST_BUCKETS)
    ledger = pld.PLDAccountant(value_discretization_interval=interval)
    for event in sampled:
        ledger.compose(_sampled_gaussian(event))
    if math.isfinite(combined):
        ledger.compose(GaussianDpEvent(combined))
    return ledger


def _typical_loss(combined: float, sampled: Sequence[Event]) -> float:
    """The privacy loss of all steps as a standard deviation, spread evenly over them."""
    variances = (e.count * e.sampling_rate**2 * math.expm1(min(e.noise_multiplier**-2, 50.0)) for e in sampled)
    return math.sqrt((sum(variances) + combined**-2) / sum(e.count for e in sampled))


def _largest_loss(event: Event) -> float:
    """About the largest privacy loss of one step that is not astronomically rare."""
    exponent = 10 / event.noise_multiplier + 0.5 / event.noise_multiplier**2
    return math.log1p(event.sampling_rate * math.expm1(exponent)) if exponent < 700 else exponent


def _rdp_epsilon(events: Sequence[Event], delta: float) -> float:
    return float(_rdp_accountant(events).get_epsilon(delta))


def _rdp_accountant(events: Sequence[Event], orders: Sequence[float] | None = None) -> Any:
    from dp_accounting import GaussianDpEvent, rdp

    # Some fractional orders do not converge and are left out, which only loosens the bound; no need to say so.
    logging.getLogger("absl").setLevel(logging.ERROR)
    combined, sampled = _split(events)
    ledger = rdp.RdpAccountant(orders=orders)
    for event in sampled:
        ledger.compose(_sampled_gaussian(event))
    if math.isfinite(combined):
        ledger.compose(GaussianDpEvent(combined))
    return ledger


def _sampled_gaussian(event: Event) -> Any:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

    return SelfComposedDpEvent(
        PoissonSampledDpEvent(event.sampling_rate, GaussianDpEvent(event.noise_multiplier)), event.count
    )


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """The exact delta of one Gaussian release at `epsilon`."""
    from scipy.special import log_ndtr

    mu = 1 / noise_multiplier
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return float(math.exp(first) * -math.expm1(second - first)) if second < first else 0.0


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """The exact epsilon of one Gaussian release at `delta`, rounded up in the last digits."""
    if gaussian_delta(noise_multiplier, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(noise_multiplier, high) > delta:
        high *= 2
    low = 0.0
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(noise_multiplier, middle) > delta else (low, middle)
    return high


def calibrate(budget: Budget, events_at: Callable[[float], Sequence[Event]]) -> float:
    """The smallest noise, to a tenth of a percent, with which `events_at(noise)` fits the budget.

    `events_at` must cost less as its argument grows; usually the argument is a noise multiplier or a factor on several.
    The answer never overshoots: the events at the returned noise were priced and cost at most the budget. What the
    budget carries from earlier runs is priced with them.
    """
    if budget.carried:
        spent = epsilon_of(budget.carried, budget.delta)
        if spent >= budget.epsilon:
            raise BudgetError(
                f"The releases that this run builds upon cost epsilon {spent:.4g} already, and the budget is "
                f"{budget.epsilon:g}. Ask for a larger --epsilon, or do without them. Nothing was charged."
            )

    @functools.cache
    def cost(noise: float, width: float) -> float:
        worlds = _worlds([*budget.carried, *events_at(noise)])
        return max((_pld_epsilon(world, budget.delta, width) for world in worlds), default=0.0)

    low, high = _bracket(lambda noise: cost(noise, _COARSE), budget.epsilon)
    if low == high:
        return high
    noise = _crossing(lambda noise: cost(noise, _COARSE), budget.epsilon, low, high)
    # Coarse buckets overestimate a little: give that much noise back by the local slope, and check it finely.
    price, steeper = cost(noise, _COARSE), cost(noise / 1.05, _COARSE)
    if 0 < price < steeper:
        slope = math.log(steeper / price) / math.log(1.05)
        noise = max(noise * float(cost(noise, _FINE) / budget.epsilon) ** (1 / slope), low)
    margin = 1.0001
    while cost(noise, _FINE) > budget.epsilon:
        noise *= margin
        margin = 1 + 2 * (margin - 1)
    return noise


def _crossing(cost: Callable[[float], float], epsilon: float, low: float, high: float) -> float:
    """Where a falling cost meets `epsilon`, to a tenth of a percent."""
    from scipy.optimize import brentq

    def excess(log_noise: float) -> float:
        price = cost(math.exp(log_noise))
        return math.log(price / epsilon) if price > 0 else -math.inf

    try:
        return math.exp(float(brentq(excess, math.log(low), math.log(high), xtol=1e-3)))
    except ValueError:  # the price fell to exactly zero within the bracket
        return high


def _bracket(cost: Callable[[float], float], epsilon: float) -> tuple[float, float]:
    """A noise that costs too much and one that fits; equal when even the least noise fits."""
    low = high = 1.0
    while cost(high) > epsilon:
        low, high = high, high * 2
        if high > 1e7:
            raise BudgetError(f"No amount of noise fits epsilon={epsilon:g}. Ask for fewer steps or a larger epsilon.")
    while low >= _LEAST_NOISE and cost(low) <= epsilon:
        low, high = low / 2, low
    return (low, high) if low >= _LEAST_NOISE else (high, high)


# Orders at which an account's running total may be judged. One is picked from the limit alone, before any run.
_ORDERS = tuple(1 + x / 10 for x in range(1, 100)) + tuple(range(11, 64)) + (128, 256, 512, 1024)


def fits_account(spent: Sequence[Sequence[Event]], wanted: Sequence[Event], limit: Budget) -> bool:
    """Whether an account that spent the plans `spent` may also spend `wanted`.

    Plans follow one another, and people choose the next after seeing the last release. PLD composition is proved for
    settings fixed in advance, so it prices the first plan of an account. From the second plan on, the total is kept in
    Renyi DP at one order fixed by the limit, which holds under fully adaptive choice (Feldman and Zrnic 2021,
    "Individual privacy accounting via a Renyi filter", Theorem 4.3).
    """
    if not spent:
        return epsilon_of(wanted, limit.delta) <= limit.epsilon
    order, allowance = _filter_order(limit)
    total = sum(_worst_renyi(plan, order) for plan in (*spent, wanted))
    return total <= allowance


def _filter_order(limit: Budget) -> tuple[float, float]:
    """The order whose allowance buys the most precise Gaussian, and that allowance in Renyi DP."""

    def allowance(order: float) -> float:
        # Conversion of Canonne, Kamath and Steinke 2020, Proposition 12, solved for the Renyi part.
        return limit.epsilon - math.log1p(-1 / order) + math.log(limit.delta * order) / (order - 1)

    best = max(_ORDERS, key=lambda order: allowance(order) / order)
    return best, allowance(best)


def _worst_renyi(events: Sequence[Event], order: float) -> float:
    return max((float(_rdp_accountant(world, [order]).rdp[0]) for world in _worlds(events)), default=0.0)
