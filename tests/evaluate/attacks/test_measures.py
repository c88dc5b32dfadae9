"""Numbers of scores against scikit-learn, and their intervals against their own promise."""

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as reference

from veilset.core.errors import InputError
from veilset.evaluate.attacks.measures import (
    accuracy_at,
    area_under_curve,
    best_threshold,
    clopper_pearson,
    too_few_for,
    true_positive_rate,
)


def gaussians(seed, pairs=500, shift=1.0):
    rng = np.random.default_rng(seed)
    is_member = np.arange(2 * pairs) % 2 == 0
    return rng.normal(size=2 * pairs) + shift * is_member, is_member


def tpr_by_scikit_learn(scores, is_member, rate):
    alarms, found, _ = reference.roc_curve(is_member, scores, drop_intermediate=False)
    return found[alarms <= rate + 1e-12].max()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pairs", [40, 333, 2000])
def test_values_equal_scikit_learn(seed, pairs):
    scores, is_member = gaussians(seed, pairs)
    assert area_under_curve(scores, is_member).value == pytest.approx(reference.roc_auc_score(is_member, scores))
    for rate in (0.001, 0.01, 0.1):
        assert true_positive_rate(scores, is_member, rate).value == pytest.approx(
            tpr_by_scikit_learn(scores, is_member, rate)
        )


def test_ties_count_half_in_the_auc_and_are_ordered_by_coins_in_rates():
    rng = np.random.default_rng(0)
    is_member = np.arange(20_000) % 2 == 0
    right = (rng.random(20_000) < np.where(is_member, 0.9, 0.7)).astype(float)
    assert area_under_curve(right, is_member).value == pytest.approx(reference.roc_auc_score(is_member, right))
    # The line from (0, 0) to (P(1 | nonmember), P(1 | member)) of a randomised attacker.
    assert true_positive_rate(right, is_member, 0.1).value == pytest.approx(0.1 * 0.9 / 0.7, abs=0.015)


def test_perfect_scores_give_one_and_a_bound_that_is_not():
    _, is_member = gaussians(0, 200)
    scores = is_member.astype(float)
    found = area_under_curve(scores, is_member)
    assert found.value == 1
    assert found.interval == (pytest.approx(0.025 ** (1 / 200)), 1.0)
    assert true_positive_rate(scores, is_member, 0.01).value == 1
    assert accuracy_at(scores, is_member, best_threshold(scores, is_member)).value == 1


def test_constant_scores_are_chance():
    _, is_member = gaussians(0, 100)
    found = area_under_curve(np.zeros(200), is_member)
    assert found.value == 0.5
    assert found.interval[0] < 0.5 < found.interval[1]


def test_intervals_cover_what_they_should():
    """Over 300 draws a 95 % interval misses more than 27 times with probability below 0.2 %."""
    truth = {"auc": stats.norm.cdf(1 / np.sqrt(2)), 0.01: stats.norm.sf(stats.norm.isf(0.01) - 1)}
    missed = dict.fromkeys(["auc", 0.01, "chance", "chance rate"], 0)
    for seed in range(300):
        scores, is_member = gaussians(seed)
        missed["auc"] += not inside(area_under_curve(scores, is_member), truth["auc"])
        missed[0.01] += not inside(true_positive_rate(scores, is_member, 0.01), truth[0.01])
        guesses, _ = gaussians(seed, shift=0.0)
        missed["chance"] += not inside(area_under_curve(guesses, is_member), 0.5)
        missed["chance rate"] += not inside(true_positive_rate(guesses, is_member, 0.01), 0.01)
    assert max(missed.values()) <= 27, missed
    assert missed["auc"] >= 3, "far too wide"


def inside(measurement, truth):
    low, high = measurement.interval
    assert low <= measurement.value <= high
    return low <= truth <= high


@pytest.mark.parametrize(("hits", "n"), [(0, 20), (7, 20), (20, 20)])
def test_clopper_pearson_is_scipys(hits, n):
    exact = stats.binomtest(hits, n).proportion_ci(method="exact")
    assert clopper_pearson(hits, n) == (pytest.approx(exact.low), pytest.approx(exact.high))


def test_small_samples_are_called_small():
    assert "1000" in too_few_for(0.001, 999)
    assert "no lower bound" in too_few_for(0.001, 1000)
    assert too_few_for(0.01, 500) is None
    scores, is_member = gaussians(0, 300)
    assert true_positive_rate(scores, is_member, 0.001).interval[0] == 0
    assert too_few_for(0.001, 4381) is None
    scores, is_member = gaussians(0, 4381, shift=4.0)
    assert true_positive_rate(scores, is_member, 0.001).interval[0] > 0


def test_the_threshold_balances_both_errors():
    scores, is_member = gaussians(1, 20_000, shift=2.0)
    assert best_threshold(scores, is_member) == pytest.approx(1.0, abs=0.15)
    assert accuracy_at(scores, is_member, 1.0).value == pytest.approx(stats.norm.cdf(1), abs=0.01)


@pytest.mark.parametrize("scores", [np.full(10, np.nan), np.zeros(9), np.zeros((10, 1))])
def test_scores_that_are_none_are_refused(scores):
    with pytest.raises(InputError, match="finite score"):
        area_under_curve(scores, np.arange(10) % 2 == 0)
