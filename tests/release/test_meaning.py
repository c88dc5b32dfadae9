"""What epsilon means: bounds against closed forms and against an attacker who plays."""

import math

import numpy as np
import pytest

from veilset.privacy.accounting import delta_of, epsilon_of
from veilset.privacy.events import Event
from veilset.release.meaning import guess_from_epsilon, guess_from_events


def test_the_bound_from_epsilon():
    assert guess_from_epsilon(0, 0) == 0.5
    assert guess_from_epsilon(1, 0) == pytest.approx(math.e / (1 + math.e))
    assert guess_from_epsilon(0, 1) == 1
    assert guess_from_epsilon(1e6, 0) == 1


@pytest.mark.parametrize("noise", [0.5, 1.0, 4.0])
def test_one_gaussian_is_exact_and_an_attacker_reaches_it(noise):
    """N(0, s) against N(1, s): the best rule is a threshold at 1/2, right with probability Phi(1 / 2s)."""
    bound = guess_from_events([Event(label="sum", noise_multiplier=noise)])
    assert bound == pytest.approx(0.5 * (1 + math.erf(0.5 / noise / math.sqrt(2))), abs=1e-9)
    coins, runs = np.random.default_rng(0), 40_000
    truth = coins.integers(0, 2, runs)
    right = ((truth + noise * coins.normal(size=runs) > 0.5) == truth).mean()
    assert abs(right - bound) < 4 * 0.5 / math.sqrt(runs)


def test_sampled_steps_are_bounded_more_tightly_than_by_epsilon():
    events = [Event(label="steps", noise_multiplier=1.0, sampling_rate=0.01, count=200)]
    epsilon = epsilon_of(events, 1e-5)
    assert 0.5 < guess_from_events(events) < guess_from_epsilon(epsilon, 1e-5)
    assert delta_of(events, epsilon) == pytest.approx(1e-5, rel=0.05)


def test_of_disjoint_shards_the_worst_counts():
    parts = [Event(label="a", noise_multiplier=n, partition="p", shard=i) for i, n in enumerate((1.0, 2.0))]
    assert guess_from_events(parts) == guess_from_events(parts[:1])
