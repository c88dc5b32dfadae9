"""Noise over bands: its weights, what it refuses, and the event that says it."""

import copy
import os
import pickle

import numpy as np
import pytest
import torch

from veilset.core.errors import BudgetError, InputError, VeilsetError
from veilset.privacy.accounting import epsilon_of, noise_of, rough_noise_of
from veilset.privacy.budget import Budget
from veilset.privacy.correlation import CorrelatedNoise, band_weights, noise_in_weights
from veilset.privacy.events import Event
from veilset.privacy.spending import require_independent

BANDED = Event(label="steps", noise_multiplier=2.0, sampling_rate=0.2, count=5, bands=4)


def strategy(weights: np.ndarray, steps: int) -> np.ndarray:
    """The matrix C with C w = z."""
    return sum(np.diag(np.full(steps - lag, weight), -lag) for lag, weight in enumerate(weights) if lag < steps)


@pytest.mark.parametrize("bands", [1, 2, 4, 16, 64])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.999])
def test_weights_have_length_one_and_no_more(bands, momentum):
    weights = band_weights(bands, momentum)
    assert len(weights) == bands
    assert 1 - 1e-11 < np.linalg.norm(weights) < 1
    assert (weights > 0).all()
    assert (np.diff(weights) < 0).all(), "falling weights have an inverse that does not grow"


@pytest.mark.parametrize(("bands", "momentum"), [(1, 0.0), (3, 0.0), (4, 0.9), (16, 0.5)])
def test_the_noise_in_the_weights_is_that_of_the_matrices(bands, momentum):
    steps, weights = 12, band_weights(bands, momentum)
    lags = np.subtract.outer(np.arange(steps), np.arange(steps))
    carried = np.where(lags >= 0, (1 - momentum) * momentum ** np.abs(lags), 0.0)
    left = np.tril(np.ones((steps, steps))) @ carried @ np.linalg.inv(strategy(weights, steps))
    assert noise_in_weights(weights, steps, momentum) == pytest.approx(np.sqrt((left**2).sum(axis=1).mean()))


def test_weighted_noise_is_what_was_drawn():
    weights, drawn = band_weights(3, 0.9), torch.randn(7, 5, dtype=torch.float64)
    noise = CorrelatedNoise(weights)
    steps = torch.stack([noise.following(fresh.clone()) for fresh in drawn])
    torch.testing.assert_close(torch.from_numpy(strategy(weights, 7)) @ steps, drawn)


def test_a_callers_change_of_the_noise_does_not_reach_what_is_remembered():
    weights, drawn = band_weights(2, 0.0), torch.randn(2, 5, dtype=torch.float64)
    noise = CorrelatedNoise(weights)
    first = noise.following(drawn[0].clone())
    kept = first.clone()
    first.zero_()
    torch.testing.assert_close(noise.following(drawn[1].clone()), (drawn[1] - weights[1] * kept) / weights[0])


def test_noise_is_never_copied_or_stored():
    noise = CorrelatedNoise(band_weights(2, 0.9))
    for leave in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(VeilsetError, match="cannot be copied or stored"):
            leave(noise)
    noise.following(torch.full((3,), 123.25, dtype=torch.float64))
    assert "123" not in repr(noise)


def test_a_forked_process_forgets(monkeypatch):
    noise = CorrelatedNoise(band_weights(2, 0.9))
    noise.following(torch.ones(3, dtype=torch.float64))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    fresh = torch.ones(3, dtype=torch.float64)
    assert torch.equal(noise.following(fresh.clone()), fresh / band_weights(2, 0.9)[0])


@pytest.mark.parametrize("weights", [[1.0, 0.1], [0.0, 1.0], [-0.5, 0.5]])
def test_weights_that_would_claim_too_much_are_refused(weights):
    with pytest.raises(VeilsetError, match="length at most 1"):
        CorrelatedNoise(weights)


def test_an_event_says_its_bands():
    assert BANDED.steps == 20
    assert Event.from_json(BANDED.to_json()) == BANDED
    assert "bands" not in Event(label="steps", noise_multiplier=2.0).to_json()


@pytest.mark.parametrize("bands", [1, 0, -2, 2.0, True, "4", 10**6])
def test_a_strange_number_of_bands_is_refused(bands):
    with pytest.raises(InputError):
        Event.from_json(BANDED.to_json() | {"bands": bands})


def test_an_event_costs_what_a_unit_meets():
    """`count` sampled Gaussians, however many steps there are."""
    alone = Event(label="steps", noise_multiplier=2.0, sampling_rate=0.2, count=5)
    assert epsilon_of([BANDED], 1e-5) == epsilon_of([alone], 1e-5)


def test_the_rough_noise_is_near_and_not_below():
    budget = Budget(3.0, 1e-5)
    assert 1 < rough_noise_of(BANDED, budget) / noise_of(BANDED, budget) < 1.25


def test_mechanisms_that_draw_noise_anew_refuse_it():
    with pytest.raises(BudgetError, match="over 4 bands"):
        require_independent(BANDED)
