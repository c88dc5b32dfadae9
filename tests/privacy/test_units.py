"""Runs for each record, counted for people with several images: never below the exact price."""

import math
from dataclasses import replace

import pytest

from veilset.core.errors import InputError
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.events import Event
from veilset.privacy.units import for_groups

DELTA = 1e-5


def test_a_full_sum_counts_m_fold() -> None:
    (event,) = for_groups([Event(label="sum", noise_multiplier=12.0, count=3)], 4)
    assert (event.noise_multiplier, event.sampling_rate, event.count) == (3.0, 1.0, 3)


@pytest.mark.parametrize(("noise", "rate", "steps", "images"), [(2.0, 0.01, 100, 3), (4.0, 0.1, 20, 5)])
def test_a_sampled_sum_costs_at_least_the_exact_mixture(noise: float, rate: float, steps: int, images: int) -> None:
    """Each of m images is sampled by a coin of its own: the shift is binomial, as Ganesh (2024) prices it."""
    from dp_accounting import SelfComposedDpEvent, pld
    from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
    from scipy.stats import binom

    shifts = range(images + 1)
    mixture = MixtureOfGaussiansDpEvent(noise, list(shifts), [float(binom.pmf(k, images, rate)) for k in shifts])
    exact = pld.PLDAccountant().compose(SelfComposedDpEvent(mixture, steps)).get_epsilon(DELTA)
    event = Event(label="dp-sgd", noise_multiplier=noise, sampling_rate=rate, count=steps)
    assert epsilon_of([event], DELTA) < exact <= epsilon_of(for_groups([event], images), DELTA)


def test_one_image_changes_nothing() -> None:
    event = Event(label="x", noise_multiplier=2.0, sampling_rate=0.25, partition="p", shard=1)
    (same,) = for_groups([event], 1)
    assert same.noise_multiplier == 2.0
    assert same.sampling_rate == pytest.approx(0.25)
    with pytest.raises(InputError, match="at least 1 image"):
        for_groups([event], 0)


def test_full_shards_stay_parallel_and_sampled_ones_add_up() -> None:
    full = [Event(label="x", noise_multiplier=4.0, partition="p", shard=shard) for shard in range(3)]
    assert epsilon_of(for_groups(full, 2), DELTA) == pytest.approx(
        epsilon_of([Event(label="x", noise_multiplier=2.0)], DELTA)
    )
    sampled = [Event(label="x", noise_multiplier=4.0, sampling_rate=0.5, partition="p", shard=k) for k in range(2)]
    assert {event.partition for event in for_groups(sampled, 2)} == {None}


def test_rounds_of_correlated_noise_count_in_full_for_a_person() -> None:
    """Two images of a person take part in steps side by side, whose noise is shared: no gain of sampling is left."""
    event = Event(label="teacher", noise_multiplier=8.0, sampling_rate=0.05, count=25, bands=16)
    (counted,) = for_groups([event], 2)
    assert (counted.noise_multiplier, counted.sampling_rate, counted.count, counted.bands) == (4.0, 1.0, 25, 1)
    total = Event(label="one sum", noise_multiplier=8.0 / (2 * math.sqrt(25)))
    assert epsilon_of([counted], DELTA) == pytest.approx(epsilon_of([total], DELTA), rel=1e-3)
    as_if_apart = replace(event, noise_multiplier=4.0, sampling_rate=1 - 0.95**2, bands=1)
    assert epsilon_of([counted], DELTA) > epsilon_of([as_if_apart], DELTA)
    assert for_groups([event], 1) == [event]
