"""The audit in one run on made-up scores of known epsilon, and on a teacher."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from veilset.audit.game import seeded
from veilset.audit.one_run import audit_teacher, one_run_bound, right_guesses, tail_bound
from veilset.core.errors import InputError
from veilset.privacy.accounting import gaussian_epsilon

DELTA = 1e-5


def test_the_tail_without_delta_is_that_of_a_binomial() -> None:
    assert tail_bound(100, 100, 75, math.log(3), 0.0) == pytest.approx(binom.sf(74, 100, 0.75))
    assert tail_bound(100, 100, 75, math.log(3), 0.0) == pytest.approx(0.553, abs=1e-3)


def test_delta_adds_the_steepest_part_of_the_tail() -> None:
    """By hand: 2 guesses, both right, q = 1/2: W is below 2 by 1 with probability 1/2, by 2 with 3/4 in all."""
    extra = tail_bound(10, 2, 2, 0.0, 1e-3) - tail_bound(10, 2, 2, 0.0, 0.0)
    assert extra == pytest.approx(2 * 10 * 1e-3 * max(0.5 / 1, 0.75 / 2))


def test_more_right_guesses_show_more() -> None:
    bounds = [one_run_bound(1000, 100, right, DELTA, 0.95) for right in (50, 70, 80, 95, 100)]
    assert bounds[0] == 0.0
    assert bounds == sorted(bounds)
    assert bounds[1] < bounds[-1]


@pytest.mark.parametrize("distance", [0.5, 1.0, 2.0, 3.0])
def test_made_up_scores_never_show_more_than_the_truth(distance: float) -> None:
    """Each canary is one Gaussian of its own: 200 audits at 95 %, of which 10 may fail; above 29 is below 1e-6."""
    truth, coins, bounds = gaussian_epsilon(1 / distance, DELTA), np.random.default_rng(0), []
    for _ in range(200):
        inside = coins.random(1000) < 0.5
        guesses, right = right_guesses(inside * distance + coins.normal(size=1000), inside)
        bounds.append(one_run_bound(1000, guesses, right, DELTA, 0.95))
    assert sum(bound > truth for bound in bounds) <= 29
    assert max(bounds) > 0


def test_randomised_response_is_bounded_tightly() -> None:
    """The mechanism for which the bound is exact: it fails in about 5 % of audits, and is close to the truth."""
    epsilon, coins, bounds = 1.0, np.random.default_rng(1), []
    for _ in range(300):
        right = int(coins.binomial(1000, math.exp(epsilon) / (1 + math.exp(epsilon))))
        bounds.append(one_run_bound(1000, 1000, right, 0.0, 0.95))
    assert sum(bound > epsilon for bound in bounds) <= 38  # 15 expected, 6 deviations above
    assert float(np.median(bounds)) > 0.8 * epsilon


def test_leaked_coins_are_found() -> None:
    inside = np.random.default_rng(0).random(400) < 0.5
    guesses, right = right_guesses(inside.astype(float), inside)
    assert guesses == right == 100
    assert one_run_bound(400, guesses, right, DELTA, 0.95) > 3


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(InputError, match="right <= guesses"):
        tail_bound(10, 5, 6, 1.0, 0.0)


@pytest.mark.slow
def test_a_teacher_in_one_run() -> None:
    black_box, every_step = audit_teacher(10.0, canaries=200, steps=20, confidence=1 - 1e-6, make_noise=seeded(0))
    assert not black_box.contradicted
    assert not every_step.contradicted
    assert every_step.name.endswith("every step")
