"""From the scores of a distinguishing game to a lower bound on epsilon.

A game runs a mechanism many times without a record and many times with it and gives each run a score. Whoever says
"with" above a threshold errs at rates that every claim bounds from below; rates below that refute the claim.

1. The threshold is chosen on a fifth of the scores; the other four fifths, which it has not seen, give the errors.
2. Both error rates get exact upper bounds (Clopper and Pearson 1934), each at half of the allowed failure; or their sum
   gets one. Of all pairs of rates with one sum, equal rates have the longest lower tail of errors (Hoeffding 1956, "On
   the distribution of the number of successes in independent trials"), so that the bound of one binomial holds.
   Which of the two is used is chosen with the threshold.
3. `epsilon_by_rates`: (epsilon, delta)-DP says P[says with | with] <= delta + e^epsilon P[says with | without], and the
   same of the opposite answers. This holds for any mechanism and wastes what is known of the noise.
4. `Family`: a claim of Gaussian events says much more, a whole trade-off curve between the two errors (Dong, Roth, Su
   2022, "Gaussian differential privacy"). With s the largest factor on all noise multipliers whose curve allows the
   errors, the bound is the epsilon at s (Nasr et al. 2023, "Tight auditing of differentially private machine
   learning"). For full sums the curve is that of one Gaussian, in closed form; sampled events take theirs from the PLD.

At most 1 - confidence of all audits of a sound claim give a bound above it.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv
from scipy.stats import norm

from veilset.core.errors import InputError
from veilset.privacy.accounting import epsilon_of, gaussian_epsilon
from veilset.privacy.events import Event

Numbers = NDArray[np.float64]

_SELECTION_SHARE = 0.2
_CANDIDATES = 99
_FEWEST_RUNS = 10
# Factors on the noise are powers of this, so that curves are computed once and shared. 1.01^-110 is a third.
_BASE = 1.01
_LEAST, _MOST = -110, 400
_INTERVAL, _BUCKETS = 4e-3, 4e3  # of a privacy loss; the excess of a coarse curve falls with the square
_LARGEST_EPSILON, _PROFILE_POINTS = 30.0, 400


@dataclass(frozen=True, kw_only=True)
class Scores:
    """One score for each run, higher where the record seems present."""

    without: Numbers
    present: Numbers

    def __post_init__(self) -> None:
        if len(self.without) != len(self.present) or len(self.without) < _FEWEST_RUNS:
            raise InputError(f"Expected at least {_FEWEST_RUNS} runs of each kind, as many of both. Pass --runs 1000.")
        if not (np.isfinite(self.without).all() and np.isfinite(self.present).all()):
            raise InputError("Expected finite scores.")

    def split(self) -> tuple["Scores", "Scores"]:
        """The runs that choose the threshold, and the others. Runs are exchangeable, so any split will do."""
        first = math.ceil(_SELECTION_SHARE * len(self.without))
        return (
            Scores(without=self.without[:first], present=self.present[:first]),
            Scores(without=self.without[first:], present=self.present[first:]),
        )


def upper_bound(errors: Numbers, count: int, failure: float) -> Numbers:
    """Clopper-Pearson: the largest probability under which so few errors of `count` are not rarer than `failure`."""
    bounds: Numbers = np.where(errors >= count, 1.0, betaincinv(errors + 1, np.maximum(count - errors, 1), 1 - failure))
    return bounds


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Upper bounds on both error rates at several thresholds. `only_sums`: twice their mean is bounded, not each."""

    false_positive: Numbers
    false_negative: Numbers
    only_sums: bool

    @property
    def sums(self) -> Numbers:
        """The sum of both rates."""
        return self.false_positive + self.false_negative

    def gaussian_distances(self) -> Numbers:
        """The least distance of two unit Gaussians that allows these errors; for a sum, equal errors do."""
        return np.asarray(norm.isf(self.false_positive) + norm.isf(self.false_negative))

    @classmethod
    def of(cls, scores: Scores, thresholds: Numbers, failure: float, *, only_sums: bool) -> "Errors":
        """What the scores show of "with above the threshold", at `failure` for each threshold alone."""
        runs = len(scores.without)
        wrong = runs - np.searchsorted(np.sort(scores.without), thresholds, side="right").astype(float)
        missed = np.searchsorted(np.sort(scores.present), thresholds, side="right").astype(float)
        if only_sums:
            mean = upper_bound(wrong + missed, 2 * runs, failure)
            return cls(false_positive=mean, false_negative=mean, only_sums=True)
        return cls(
            false_positive=upper_bound(wrong, runs, failure / 2),
            false_negative=upper_bound(missed, runs, failure / 2),
            only_sums=False,
        )


def epsilon_by_rates(false_positive: float, false_negative: float, delta: float) -> float:
    """The least epsilon that allows these (upper bounds on the) error rates at `delta`."""
    ratios = (
        (1 - second - delta) / first
        for first, second in ((false_positive, false_negative), (false_negative, false_positive))
    )
    return max(0.0, *(math.log(ratio) if ratio > 0 else 0.0 for ratio in ratios))


class Family:
    """A claim and its relatives: the same events with all noise multiplied by a factor.

    Of the shards of a partition the dearest counts, as in the accounting.
    """

    def __init__(self, events: Sequence[Event], delta: float) -> None:
        self.events, self.delta = _worst_world(events, delta), delta
        self.full = all(event.sampling_rate == 1.0 for event in self.events)

    def epsilon(self, factor: float = 1.0) -> float:
        """What the events cost with their noise times `factor`."""
        return epsilon_of(self._scaled(factor), self.delta)

    def best(self, errors: "Errors") -> tuple[int, float]:
        """Which of several error rates shows most, and the largest epsilon of the family that forbids it."""
        if self.full:
            distances = errors.gaussian_distances()
            place = int(np.argmax(distances))
            distance = float(distances[place])
            return place, gaussian_epsilon(1 / distance, self.delta) if distance > 0 else 0.0
        if not self._forbids(_MOST, errors):
            return int(np.argmin(errors.sums)), 0.0
        low, high = _LEAST - 1, _MOST  # the least power that forbids lies above low and not above high
        guess = 0
        while high - low > 1:
            low, high = (low, guess) if self._forbids(guess, errors) else (guess, high)
            # Near the claim first: far below it the curves are slow to compute.
            guess = max((low + high) // 2, high - 32) if high <= 0 else (low + high) // 2
        return int(np.argmax(self._excess(high, errors))), self.epsilon(_BASE**high)

    def _forbids(self, power: int, errors: "Errors") -> bool:
        return bool((self._excess(power, errors) > 0).any())

    def _excess(self, power: int, errors: "Errors") -> Numbers:
        """By how much each pair of rates breaks the curve at this power; not above 0 where it is allowed."""
        epsilons, deltas = self._profile(power)
        if errors.only_sums:
            return np.asarray(1 - errors.sums - deltas[0])
        growth = np.exp(epsilons)
        pairs = ((errors.false_positive, errors.false_negative), (errors.false_negative, errors.false_positive))
        excess: Numbers = np.max(
            [(1 - second[:, None] - growth * first[:, None] - deltas).max(axis=1) for first, second in pairs], axis=0
        )
        return excess

    def _scaled(self, factor: float) -> list[Event]:
        return [replace(event, noise_multiplier=event.noise_multiplier * factor) for event in self.events]

    @functools.lru_cache(maxsize=256)  # noqa: B019 (a family lives as long as its audit)
    def _profile(self, power: int) -> tuple[Numbers, Numbers]:
        """Epsilons from 0 up and the delta of the events at each, rounded up by the PLD."""
        from dp_accounting.pld import privacy_loss_distribution as pld

        total = None
        events = self._scaled(_BASE**power)
        interval = max(_INTERVAL, *(_loss(event) / _BUCKETS for event in events))
        for event in events:
            one = pld.from_gaussian_mechanism(
                event.noise_multiplier, value_discretization_interval=interval, sampling_prob=event.sampling_rate
            )
            steps = one.self_compose(event.count) if event.count > 1 else one
            total = steps if total is None else total.compose(steps)
        # More points where the bulk of the curve is decided.
        epsilons = _LARGEST_EPSILON * np.linspace(0, 1, _PROFILE_POINTS) ** 2
        return epsilons, np.asarray(total.get_delta_for_epsilon(epsilons)) if total is not None else 0 * epsilons


def _loss(event: Event) -> float:
    """About the largest privacy loss of one step."""
    return 8 / event.noise_multiplier + 0.5 / event.noise_multiplier**2


def _worst_world(events: Sequence[Event], delta: float) -> list[Event]:
    world = [event for event in events if event.partition is None]
    partitions: dict[str | None, dict[int | None, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        if event.partition is not None:
            partitions[event.partition][event.shard].append(event)
    for shards in partitions.values():
        costs = {_cost_key(shard): shard for shard in shards.values()}
        world += max(list(costs.values()), key=functools.partial(epsilon_of, delta=delta))
    return world


def _cost_key(shard: Sequence[Event]) -> tuple[tuple[float, float, int], ...]:
    return tuple(sorted((event.noise_multiplier, event.sampling_rate, event.count) for event in shard))


@dataclass(frozen=True, kw_only=True)
class LowerBound:
    """What a game shows: `epsilon` by the trade-off curve, `by_rates` from the error rates alone."""

    epsilon: float
    by_rates: float


def lower_bound(scores: Scores, family: Family, confidence: float) -> LowerBound:
    """Lower bounds on epsilon, each of which fails with probability at most 1 - `confidence`."""
    if not 0 < confidence < 1:
        raise InputError(f"Expected 0 < confidence < 1, got {confidence}.")
    failure = 1 - confidence
    chosen, fresh = scores.split()
    pooled = np.sort(np.concatenate([chosen.without, chosen.present]))
    places = np.linspace(0, len(pooled) - 2, _CANDIDATES).round().astype(int)
    # Between two scores, so that rounding of equal scores decides nothing.
    thresholds = np.unique((pooled[places] + pooled[places + 1]) / 2)
    # Bounds of the few choosing runs are wide where errors are rare, so a lucky extreme is not chosen.
    options = [Errors.of(chosen, thresholds, failure, only_sums=only_sums) for only_sums in (False, True)]
    bests = [family.best(errors) for errors in options]
    only_sums = bests[1][1] >= bests[0][1]
    place = bests[int(only_sums)][0]
    final = Errors.of(fresh, thresholds[[place]], failure, only_sums=only_sums)
    return LowerBound(
        epsilon=family.best(final)[1], by_rates=_by_rates(options[0], fresh, thresholds, failure, family.delta)
    )


def _by_rates(chosen: Errors, fresh: Scores, thresholds: Numbers, failure: float, delta: float) -> float:
    """The plain Clopper-Pearson bound at the threshold that serves it best."""
    pairs = zip(chosen.false_positive, chosen.false_negative, strict=True)
    place = int(np.argmax([epsilon_by_rates(float(first), float(second), delta) for first, second in pairs]))
    final = Errors.of(fresh, thresholds[[place]], failure, only_sums=False)
    return epsilon_by_rates(float(final.false_positive[0]), float(final.false_negative[0]), delta)
