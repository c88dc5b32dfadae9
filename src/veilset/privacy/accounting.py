"""From events to epsilon, and from a budget to the noise that just fits it.

The reference is the privacy loss distribution (PLD) accountant of Google's dp-accounting; Renyi DP is the cross-check.
Sums over the whole vault are Gaussians and compose to one Gaussian exactly, whose epsilon has a closed form
(Balle and Wang 2018, "Improving the Gaussian mechanism for differential privacy", Theorem 8), as its Renyi divergences
have. They are used when nothing is sampled; the library, which takes most of a second to load, is left out then.
Relation everywhere: add/remove-one.
"""

import functools
import gc
import itertools
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from veilset.core.errors import BudgetError, InputError, VeilsetError
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
# Of Renyi divergences: those of the library, written out so that both ways of this file take the same ones.
_ORDERS = (*(1 + tenth / 10 for tenth in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)
_LOW_ORDERS, _HIGH_ORDERS = (*range(2, 33), 48, 64), (96, 128, 256, 512, 1024)  # for a rough epsilon
_TAIL = 1e-15  # that the library cuts off when it composes a step with itself
# What work costs beside a composed point: a built one, and the moments of an event.
_TO_BUILD = 5.0
_OF_MOMENTS = 5e4
_LARGEST_GRID = 0.3  # of all the work: what a single grid may take
# A tiny sampling rate may make less noise than this fit on paper; it would protect nobody who is sampled.
_LEAST_NOISE = 0.1


def epsilon_of(
    events: Sequence[Event], delta: float, accountant: Accountant = "pld", *, most_work: float = math.inf
) -> float:
    """The epsilon that `events` together cost at `delta`; with `most_work` raise instead of computing for long.

    Privacy: an upper bound for any record, events composed in the order and with the settings listed. Of the shards
    of a partition only the worst counts, because a record lies in one of them.
    """
    if not LEAST_DELTA <= delta < 1:
        raise InputError(
            f"Expected delta from {LEAST_DELTA:g} to below 1, got {delta:g}. Below that the accountants' own rounding "
            "is larger than delta."
        )
    work = Work(most_work)
    if accountant == "rdp":
        costs = [_rdp_epsilon(world, delta, work) for world in _worlds(events)]
    else:
        costs = [_pld_epsilon(world, delta, _FINE, work) for world in _worlds(events)]
    # A maximum may pass over what is not a number, and with it over the worst world.
    return math.inf if any(map(math.isnan, costs)) else max(costs, default=0.0)


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


class Work:
    """How much may be computed, in points of a grid. Events of a stranger may be made to keep their reader busy."""

    def __init__(self, points: float = math.inf) -> None:
        self.is_bounded = points < math.inf
        self._left, self._largest = points, _LARGEST_GRID * points

    def do(self, points: float, times: float = 1.0) -> None:
        """Take away what a grid of `points` costs, before it is built; raise where that is too much."""
        self._left -= times * points
        if self._left < 0 or points > self._largest:
            raise InputError("The epsilon of these events is too costly to compute: there are too many, or too fine.")


@dataclass(frozen=True)
class _Steps:
    """Sampled steps that are alike, of one event or of several."""

    noise_multiplier: float
    sampling_rate: float
    count: int


def _split(events: Sequence[Event]) -> tuple[float, list[_Steps]]:
    """The one noise multiplier that all full sums amount to (infinite when there are none), and the sampled steps."""
    precision = sum(e.count / e.noise_multiplier**2 for e in events if e.sampling_rate == 1.0)
    combined = 1 / math.sqrt(precision) if precision else math.inf
    alike: Counter[tuple[float, float]] = Counter()
    for event in events:
        if event.sampling_rate < 1.0:
            alike[event.noise_multiplier, event.sampling_rate] += event.count
    return combined, [_Steps(*kind, count) for kind, count in alike.items()]


def _pld_epsilon(events: Sequence[Event], delta: float, width: float, work: Work) -> float:
    combined, sampled = _split(events)
    if not sampled:
        work.do(_OF_MOMENTS / 10)
        return gaussian_epsilon(combined, delta)
    if work.is_bounded:
        return float(_pld(combined, sampled, delta, width, work).get_epsilon_for_delta(delta))
    return _sampled_epsilon(combined, tuple(sampled), delta, width)


@functools.lru_cache(maxsize=1024)
def _sampled_epsilon(combined: float, sampled: tuple[_Steps, ...], delta: float, width: float) -> float:
    """Remembered, because a plan is priced when it is calibrated, shown, reserved and certified."""
    return float(_pld(combined, sampled, delta, width, Work()).get_epsilon_for_delta(delta))


def _pld_delta(events: Sequence[Event], epsilon: float) -> float:
    combined, sampled = _split(events)
    if not sampled:
        return gaussian_delta(combined, epsilon)
    return min(1.0, float(_pld(combined, sampled, _USUAL_DELTA, _FINE, Work()).get_delta_for_epsilon(epsilon)))


def _pld(combined: float, sampled: Sequence[_Steps], delta: float, width: float, work: Work) -> Any:
    """The privacy loss distribution of all events; `delta` only says how wide its buckets may be."""
    distributions = _library().pld.privacy_loss_distribution
    work.do(_OF_MOMENTS * len(sampled))
    rough = _rough_epsilon(combined, sampled, delta)
    longest = max(rough, *map(_largest_loss, sampled))
    interval = min(width * _typical_loss(combined, sampled), _WIDEST * max(1.0, rough))
    interval = max(interval, width * longest / _MOST_BUCKETS)
    total = distributions.identity(interval)
    for event in sampled:
        work.do(2 * _largest_loss(event) / interval, _TO_BUILD)
        step = distributions.from_gaussian_mechanism(
            event.noise_multiplier, value_discretization_interval=interval, sampling_prob=event.sampling_rate
        )
        # Sparse ones would be composed by way of size**count, a number with billions of digits.
        both = [one.to_dense_pmf() for one in (step._pmf_remove, step._pmf_add)]
        for one in both if work.is_bounded else ():
            work.do(_composed_size(one, event.count))
        total = total.compose(distributions.PrivacyLossDistribution(*both).self_compose(event.count))
    if math.isfinite(combined):
        work.do((20 / combined + combined**-2) / interval, _TO_BUILD)
        total = total.compose(distributions.from_gaussian_mechanism(combined, value_discretization_interval=interval))
    return total


def _rough_epsilon(combined: float, sampled: Sequence[_Steps], delta: float) -> float:
    """By a few orders. Divergences grow with the order, so where they are too large already, higher ones are left out.

    An order's epsilon is its divergence, plus log(1 - 1/order), plus something that is positive up to order 1/delta.
    """
    low = _renyi(combined, sampled, _LOW_ORDERS)
    epsilon = float(low.get_epsilon(delta))
    if epsilon <= low.rdp[-1] + math.log1p(-1 / _LOW_ORDERS[-1]) and delta * _HIGH_ORDERS[-1] <= 1:
        return epsilon
    return min(epsilon, float(_renyi(combined, sampled, _HIGH_ORDERS).get_epsilon(delta)))


def _composed_size(step: Any, count: int) -> int:
    """The points of `step` composed with itself, which the library would allocate without a word."""
    low, high = _library().pld.common.compute_self_convolve_bounds(step._probs, count, _TAIL)
    return int(high - low)


def _typical_loss(combined: float, sampled: Sequence[_Steps]) -> float:
    """The privacy loss of all steps as a standard deviation, spread evenly over them."""
    variances = (e.count * e.sampling_rate**2 * math.expm1(min(e.noise_multiplier**-2, 50.0)) for e in sampled)
    return math.sqrt((sum(variances) + combined**-2) / sum(e.count for e in sampled))


def _largest_loss(event: _Steps) -> float:
    """About the largest privacy loss of one step that is not astronomically rare."""
    exponent = 10 / event.noise_multiplier + 0.5 / event.noise_multiplier**2
    return math.log1p(event.sampling_rate * math.expm1(exponent)) if exponent < 700 else exponent


def _rdp_epsilon(events: Sequence[Event], delta: float, work: Work) -> float:
    combined, sampled = _split(events)
    work.do(_OF_MOMENTS * (len(sampled) + 0.1))
    if not sampled:
        return gaussian_renyi_epsilon(combined, delta)
    return float(_renyi(combined, sampled, _ORDERS).get_epsilon(delta))


def _renyi(combined: float, sampled: Sequence[_Steps], orders: Sequence[float]) -> Any:
    """The library's accountant of Renyi divergences, with all events."""
    library = _library()
    ledger = library.rdp.RdpAccountant(orders=orders)
    for event in sampled:
        step = library.PoissonSampledDpEvent(event.sampling_rate, library.GaussianDpEvent(event.noise_multiplier))
        ledger.compose(library.SelfComposedDpEvent(step, event.count))
    if math.isfinite(combined):
        ledger.compose(library.GaussianDpEvent(combined))
    return ledger


@functools.cache
def _library() -> Any:
    """Google's dp-accounting. Modules are no garbage: to look for some while they load takes a tenth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        import dp_accounting
        import dp_accounting.pld.privacy_loss_distribution
    finally:
        if collects:
            gc.enable()
    # Some fractional orders do not converge and are left out, which only loosens the bound; no need to say so.
    logging.getLogger("absl").setLevel(logging.ERROR)
    return dp_accounting


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


def gaussian_renyi_epsilon(noise_multiplier: float, delta: float) -> float:
    """An epsilon of one Gaussian release at `delta` by its Renyi divergences, which are order / (2 noise^2).

    From each of them by Canonne, Kamath and Steinke 2020, "The discrete Gaussian for differential privacy",
    Proposition 12, or 0 where the divergence alone keeps the total variation below delta.
    """
    best = math.inf
    for order in _ORDERS:
        divergence = order / (2 * noise_multiplier**2)
        if delta**2 + math.expm1(-divergence) > 0:
            return 0.0
        best = min(best, divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
    return max(0.0, best)


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
        return max((_pld_epsilon(world, budget.delta, width, Work()) for world in worlds), default=0.0)

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


def noise_of(event: Event, budget: Budget, *, among: Sequence[Event] | None = None) -> float:
    """The noise multiplier at which `event`, with all others `among` which it stands, just fits `budget`.

    The noise that it has is not looked at; the others keep theirs.
    """
    events = (event,) if among is None else among
    if not any(other is event for other in events):
        raise VeilsetError(f"Expected {event.label!r} among the events that it is calibrated with. Report this.")

    def events_at(noise: float) -> list[Event]:
        return [replace(other, noise_multiplier=noise) if other is event else other for other in events]

    return calibrate(budget, events_at)


def rough_noise_of(event: Event, budget: Budget) -> float:
    """About the noise multiplier at which `event` fits `budget`, by Renyi DP: to compare forms of a plan, fast.

    It is some 10 % too large. What is spent is calibrated by `noise_of`.
    """

    def cost(noise: float) -> float:
        events = [*budget.carried, replace(event, noise_multiplier=noise)]
        return _rough_epsilon(*_split(events), budget.delta)

    low, high = _bracket(cost, budget.epsilon)
    return high if low == high else _crossing(cost, budget.epsilon, low, high)


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


def gaussian_precision(events: Sequence[Event]) -> float | None:
    """The mu^2 of the one Gaussian that these events amount to, for a record in the worst shards; None if any samples.

    Full sums of noise multipliers s_i are together 1/s-Gaussian-DP with 1/s^2 the sum of 1/s_i^2.
    """
    if any(event.sampling_rate < 1.0 for event in events):
        return None
    return max((_split(world)[0] ** -2 for world in _worlds(events)), default=0.0)


def worst_renyi(events: Sequence[Event], order: float) -> float:
    """What these events cost in Renyi DP at one order, for a record in the worst shards."""
    return max((float(_renyi(*_split(world), [order]).rdp[0]) for world in _worlds(events)), default=0.0)
