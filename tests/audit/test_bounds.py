"""The bounds on made-up scores, whose truth is known. Seeds are fixed, so that no outcome is left to chance."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from veilset.audit.bounds import Errors, Family, Scores, epsilon_by_rates, lower_bound, upper_bound
from veilset.core.errors import InputError
from veilset.privacy.accounting import gaussian_delta, gaussian_epsilon
from veilset.privacy.events import Event

DELTA = 1e-5


def full(sigma: float) -> Family:
    return Family([Event(label="sum", noise_multiplier=sigma)], DELTA)


def gaussians(runs: int, distance: float, seed: int) -> Scores:
    coins = np.random.default_rng(seed)
    return Scores(without=coins.normal(size=runs), present=coins.normal(distance, size=runs))


@pytest.mark.parametrize(("errors", "count"), [(0, 50), (3, 50), (25, 50), (50, 50)])
def test_upper_bounds_are_those_of_clopper_and_pearson(errors: int, count: int) -> None:
    expected = binomtest(errors, count, alternative="less").proportion_ci(0.975).high
    assert upper_bound(np.array([errors]), count, 0.025)[0] == pytest.approx(expected, abs=1e-9)


def test_epsilon_by_rates_by_hand() -> None:
    assert epsilon_by_rates(0.01, 0.5, 0.0) == pytest.approx(math.log(50))
    assert epsilon_by_rates(0.5, 0.01, 0.1) == pytest.approx(math.log(40))
    assert epsilon_by_rates(0.6, 0.6, 0.0) == 0.0


@pytest.mark.parametrize(("epsilon", "runs"), [(1.0, 20_000), (4.0, 4000)])
def test_the_curve_comes_within_a_fifth_of_the_truth(epsilon: float, runs: int) -> None:
    sigma = {1.0: 3.7304, 4.0: 1.0807}[epsilon]
    truth = gaussian_epsilon(sigma, DELTA)
    bound = lower_bound(gaussians(runs, 1 / sigma, 0), full(sigma), 0.95)
    assert 0.8 * truth <= bound.epsilon <= truth
    assert bound.by_rates < bound.epsilon


def test_bounds_fail_no_more_often_than_stated() -> None:
    """200 audits at 90 %: at most 20 failures are expected; above 42 has a probability below 1e-6."""
    truth = gaussian_epsilon(1.0, DELTA)
    bounds = [lower_bound(gaussians(400, 1.0, seed), full(1.0), 0.9).epsilon for seed in range(200)]
    assert sum(bound > truth for bound in bounds) <= 42
    assert float(np.median(bounds)) > 0.6 * truth


def test_the_bound_of_sums_fails_no_more_often_than_stated() -> None:
    """Where errors are unequal, as here, the binomial of their mean still bounds their number (Hoeffding 1956)."""
    failures = 0
    for seed in range(300):
        coins = np.random.default_rng(seed)
        scores = Scores(without=coins.random(100) * 1.0, present=coins.random(100) + 0.0)
        errors = Errors.of(scores, np.array([0.9]), 0.1, only_sums=True)
        failures += float(errors.sums[0]) < 1.0  # the true rates are 0.1 and 0.9
    assert failures <= 57  # 30 expected at most, 5 deviations above


def test_too_little_noise_is_contradicted_and_enough_is_not() -> None:
    scores = gaussians(2000, 1.0, 3)
    for sigma, contradicted in ((1.5, True), (1.0, False), (0.7, False)):
        family = full(sigma)
        assert (lower_bound(scores, family, 0.95).epsilon > family.epsilon()) == contradicted


def test_the_profile_of_full_sums_is_the_exact_one() -> None:
    epsilons, deltas = full(1.3)._profile(0)
    exact = [gaussian_delta(1.3, float(epsilon)) for epsilon in epsilons]
    assert deltas == pytest.approx(exact, abs=1e-5)
    assert (deltas >= np.array(exact) - 1e-12).all()  # never below the truth


def test_sampled_steps_have_a_curve_of_their_own() -> None:
    """One Poisson-sampled Gaussian, whose scores are drawn from the mixture that it is."""
    rate, sigma, runs = 0.5, 0.8, 20_000
    coins = np.random.default_rng(0)
    absent = sigma * coins.normal(size=runs)
    present = sigma * coins.normal(size=runs) + (coins.random(runs) < rate)
    family = Family([Event(label="step", noise_multiplier=sigma, sampling_rate=rate)], DELTA)
    bound = lower_bound(Scores(without=absent, present=present), family, 0.95)
    assert 0.8 * family.epsilon() <= bound.epsilon <= family.epsilon()
    unsampled = Scores(without=absent, present=sigma * coins.normal(size=runs) + 1)
    assert lower_bound(unsampled, family, 0.95).epsilon > family.epsilon()


def test_of_shards_the_dearest_counts_and_not_their_sum() -> None:
    events = [
        Event(label="sum", noise_multiplier=sigma, partition="p", shard=shard)
        for shard, sigma in enumerate((1.0, 2.0, 1.0))
    ]
    assert Family(events, DELTA).epsilon() == pytest.approx(gaussian_epsilon(1.0, DELTA))


def test_bad_scores_and_settings_are_refused() -> None:
    with pytest.raises(InputError, match="at least"):
        Scores(without=np.zeros(3), present=np.zeros(3))
    with pytest.raises(InputError, match="finite"):
        Scores(without=np.full(30, np.nan), present=np.zeros(30))
    with pytest.raises(InputError, match="confidence"):
        lower_bound(gaussians(50, 1.0, 0), full(1.0), 1.0)


def test_equal_scores_show_nothing() -> None:
    same = Scores(without=np.zeros(100), present=np.zeros(100))
    assert lower_bound(same, full(1.0), 0.95).epsilon == 0.0
