"""Filters of accounts: what they take, what they refuse, and that no adaptive choice gets more than the limit."""

import math
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as distributions
from hypothesis import given, settings
from hypothesis import strategies as st

from veilset.privacy.account import Account
from veilset.privacy.accounting import calibrate, delta_of, epsilon_of, gaussian_delta, gaussian_epsilon
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.filters import bound_of, fits_account, gaussian_allowance, renyi_allowance

LIMIT = Budget(1.0, 1e-5)


def gaussian(noise: float) -> Event:
    return Event(label="sum", noise_multiplier=noise)


def sampled(noise: float, rate: float = 0.02, count: int = 200) -> Event:
    return Event(label="steps", noise_multiplier=noise, sampling_rate=rate, count=count)


def test_an_account_takes_its_first_plan_at_the_full_limit() -> None:
    limit = Budget(1.0, 1e-5)
    noise = calibrate(limit, lambda noise: [gaussian(noise)])
    assert fits_account([], [gaussian(noise)], limit)
    assert not fits_account([], [gaussian(noise * 0.99)], limit)
    assert not fits_account([[gaussian(noise)]], [gaussian(100.0)], limit)


def test_an_account_takes_two_half_plans() -> None:
    limit = Budget(1.0, 1e-5)
    half = calibrate(Budget(0.5, 1e-5), lambda noise: [gaussian(noise)])
    assert fits_account([[gaussian(half)]], [gaussian(half)], limit)
    assert not fits_account([[gaussian(half)]] * 3, [gaussian(half)], limit)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(3, 40), min_size=1, max_size=6), st.floats(0.5, 8))
def test_an_account_never_allows_what_costs_more_than_its_limit(noises: list[float], epsilon: float) -> None:
    limit = Budget(epsilon, 1e-5)
    spent: list[list[Event]] = []
    for noise in noises:
        if fits_account(spent, [gaussian(noise)], limit):
            spent.append([gaussian(noise)])
    assert epsilon_of([event for plan in spent for event in plan], 1e-5) <= epsilon


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (10.0, 1e-5), (30.0, 1e-3)])
def test_the_gaussian_allowance_is_the_exact_price(epsilon: float, delta: float) -> None:
    noise = 1 / math.sqrt(gaussian_allowance(epsilon, delta))
    assert gaussian_epsilon(noise, delta) == pytest.approx(epsilon, rel=1e-6)
    assert gaussian_delta(noise, epsilon) <= delta
    order, allowance = renyi_allowance(epsilon, delta)
    assert allowance < order / 2 * noise**-2, "the other filter allows less"


def test_full_sums_have_the_gaussian_filter_and_others_the_renyi_filter() -> None:
    half = math.sqrt(2 / gaussian_allowance(1.0, 0.9e-5))
    pair = ([[gaussian(half)]], [gaussian(half)], LIMIT)
    assert fits_account(*pair)
    assert not fits_account(*pair, knows_gaussians=False)
    assert not fits_account([[gaussian(half)]], [gaussian(0.999 * half)], LIMIT)
    # Who began with samples never has the Gaussian filter, whatever comes next.
    rest = [gaussian(2 * half)]
    assert fits_account([[sampled(1e4)]], rest, LIMIT) == fits_account(
        [[sampled(1e4)]], rest, LIMIT, knows_gaussians=False
    )
    assert not fits_account([[sampled(1e4)], [gaussian(half)]], [gaussian(half)], LIMIT)


def test_who_changes_to_samples_has_a_tenth_of_delta() -> None:
    first = [gaussian(8.0)]
    noise = next(n for n in np.arange(0.8, 10, 0.02) if fits_account([first], [sampled(float(n))], LIMIT))
    assert epsilon_of([*first, sampled(float(noise))], 1e-6) < 1.0
    assert not fits_account([first, [sampled(float(noise))]], [gaussian(20.0)], LIMIT)
    assert fits_account([first], [sampled(float(noise))], LIMIT, knows_gaussians=False), "the whole delta is more"


def test_choosing_the_kind_of_the_next_plan_by_the_last_result_gains_nothing() -> None:
    """The worst an analyst can do with two plans: of both kinds that fit, the one that tells more after this result.

    With l the privacy loss of the first result x, the delta of the pair is the mean over x of delta_2(epsilon - l).
    """
    first = gaussian(6.0)
    rest = 1 / math.sqrt(gaussian_allowance(1.0, 0.9e-5) - 6.0**-2)
    assert fits_account([[first]], [gaussian(rest * (1 + 1e-6))], LIMIT)
    noise = next(n for n in np.arange(0.7, 10, 0.02) if fits_account([[first]], [sampled(float(n))], LIMIT))
    mu = 1 / 6.0
    x = np.linspace(-8, 8 + mu, 4001)
    density = np.exp(-((x - mu) ** 2) / 2) / math.sqrt(2 * math.pi)
    left = 1.0 - (mu * x - mu**2 / 2)
    by_gaussian = np.array([gaussian_delta(rest, float(e)) for e in left])
    grid = np.linspace(left.min(), left.max(), 60)
    by_samples = np.interp(left, grid, [delta_of([sampled(float(noise))], float(e)) for e in grid])
    worst = float(np.trapezoid(density * np.maximum(by_gaussian, by_samples), x))
    assert 0.8e-5 < worst <= 1e-5


def test_a_release_that_enters_the_first_plan_was_seen_before_it() -> None:
    """Both kinds of rest cost the whole limit beside a release; who chooses by what it shows gets more than that."""
    seen = Event(label="seen", noise_multiplier=6.0, source="other")
    rest = calibrate(LIMIT, lambda noise: [seen, gaussian(noise)])
    steps = sampled(0.677, 0.001, 2000)
    assert epsilon_of([seen, steps], LIMIT.delta) <= LIMIT.epsilon
    one = distributions.from_gaussian_mechanism(0.677, value_discretization_interval=1e-3, sampling_prob=0.001)
    mu = 1 / 6.0
    x = np.linspace(-8, 8 + mu, 4001)
    density = np.exp(-((x - mu) ** 2) / 2) / math.sqrt(2 * math.pi)
    left = 1.0 - (mu * x - mu**2 / 2)
    by_samples = np.array(one.self_compose(2000).get_delta_for_epsilon(left[::-1].tolist()))[::-1]
    by_gaussian = np.array([gaussian_delta(rest, float(e)) for e in left])
    assert float(np.trapezoid(density * np.maximum(by_gaussian, by_samples), x)) > 1.4e-5
    assert not fits_account([], [seen, gaussian(rest)], LIMIT)
    assert not fits_account([], [seen, steps], LIMIT)
    for own in ([gaussian(7.0)], [gaussian(5.0)], [sampled(1.2)], [sampled(2.0)]):
        assert fits_account([], [seen, *own], LIMIT) == fits_account([[seen]], own, LIMIT)
    # Whichever of two releases came first: one of them may have been full sums.
    two = [Event(label="steps", noise_multiplier=9.0, sampling_rate=0.02, source="a"), seen]
    assert fits_account([], two, LIMIT) == fits_account([], two[::-1], LIMIT)


def test_an_account_from_before_the_gaussian_filter_keeps_its_rule(tmp_path: Path) -> None:
    old, new = Account(tmp_path / "old.sqlite"), Account(tmp_path / "new.sqlite")
    for account in (old, new):
        account.set_limit(LIMIT)
    with sqlite3.connect(tmp_path / "old.sqlite") as database:
        database.execute("DROP TABLE gaussian_filter")
    for account in (old, new):
        account.reserve("run", "merf", Plan(budget=Budget(0.5, 1e-5), events=(gaussian(8.0),)))
    before, after = old.left(), new.left()
    assert before is not None
    assert after is not None
    assert 1.05 * before < after < 1.0


def test_a_limit_chosen_by_results_gets_more_than_its_delta_and_the_bound_does_not() -> None:
    """The worst an analyst can do who names the limit after the first result: the one that tells most after it.

    What is claimed after result x is epsilon(x) at delta. With l the loss of x, the delta that this takes is the mean
    over x of delta_2(epsilon(x) - l), where the second plan spends all that the limit leaves.
    """
    first, mu = gaussian(6.0), 1 / 6.0
    x = np.linspace(-8, 8 + mu, 2001)
    density = np.exp(-((x - mu) ** 2) / 2) / math.sqrt(2 * math.pi)
    loss = mu * x - mu**2 / 2
    by_limit, by_bound = [], []
    for epsilon in np.geomspace(0.7, 20, 60):
        rest = 1.000001 / math.sqrt(gaussian_allowance(float(epsilon), 0.9e-5) - 6.0**-2)
        assert fits_account([[first]], [gaussian(rest)], Budget(float(epsilon), 1e-5))
        bound = bound_of([[first], [gaussian(rest)]], 1e-5)
        assert bound is not None
        assert epsilon < bound < 1.5 * epsilon
        by_limit.append([gaussian_delta(rest, float(e)) for e in epsilon - loss])
        by_bound.append([gaussian_delta(rest, float(e)) for e in bound - loss])
    assert float(np.trapezoid(density * np.max(by_limit, axis=0), x)) > 2e-5
    assert float(np.trapezoid(density * np.max(by_bound, axis=0), x)) <= 1e-5


def test_a_bound_is_of_all_plans_and_of_either_filter() -> None:
    alone, both = bound_of([[gaussian(8.0)]], 1e-5), bound_of([[gaussian(8.0)], [sampled(2.0)]], 1e-5)
    assert alone is not None
    assert both is not None
    assert gaussian_epsilon(8.0, 1e-5) < alone < both
    assert epsilon_of([gaussian(8.0), sampled(2.0)], 1e-7) < both
    assert bound_of([[gaussian(0.01)]], 1e-5) is None
    assert bound_of([[sampled(2.0)]], 1e-12) is not None


def test_full_sums_that_show_up_late_change_no_rule_for_the_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """An account that began with samples stays within its first rule when an older release of full sums enters."""
    order, allowance = renyi_allowance(1.0, 1e-5)
    late = [Event(label="seen", noise_multiplier=50.0, source="other"), gaussian(50.0)]
    assert fits_account([[sampled(20.0)]], late, LIMIT)
    monkeypatch.setattr(
        "veilset.privacy.filters.worst_renyi", lambda _plan, asked: allowance if asked == order else 0.0
    )
    assert not fits_account([[sampled(20.0)]], late, LIMIT)
