"""The covariance of noise over bands, and what a block of steps tells of one unit.

Tolerances are derived as in test_randomness.py: a sound sampler would fail a fresh seed with probability below 1e-6.
"""

import numpy as np
import pytest
import torch
from scipy import stats

from veilset.audit.game import MemoryLedger
from veilset.data.images import ImageSet
from veilset.dpsgd.exact import block_sum
from veilset.privacy.budget import Budget
from veilset.privacy.correlation import band_weights
from veilset.privacy.events import Event, Plan
from veilset.privacy.noise import NoiseSource, Owners
from veilset.privacy.session import Session
from veilset.privacy.vault import PublicFacts, Vault

WIDTH, BANDS, TURNS, MOMENTUM = 40_000, 4, 3, 0.9
UNLIKELY = 1e-6
MULTIPLIER, CLIP = 1.5, 0.25


class NoChoices(NoiseSource):
    """Units have one image each: drawing none of several leaves both worlds the same noise."""

    def choices(self, sizes: np.ndarray, owners: Owners | None = None) -> np.ndarray:
        return 0 * sizes


def releases(rate: float, *, seed: int, white: bool, width: int) -> np.ndarray:
    """(steps, width) of a run on one black unit and, perhaps, a white one whose row is of full length."""
    event = Event(label="steps", noise_multiplier=MULTIPLIER, sampling_rate=rate, count=TURNS, bands=BANDS)
    images = np.zeros((1 + white, 4, 4, 1), dtype=np.uint8)
    images[1:] = 255
    vault = Vault(ImageSet(images, np.zeros(len(images), dtype=np.int64), ("a", "b"), may_lack_classes=True))
    vault.facts = PublicFacts(units=1000, unit="record", shape=(4, 4, 1), class_names=("a", "b"))
    session = Session(vault, Plan(budget=Budget(50.0, 1e-5), events=(event,)), MemoryLedger(), NoChoices(seed))
    steps = session.gradient_steps(event, clip_norm=CLIP)
    steps.momentum = MOMENTUM

    def rows(images: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
        full = images.flatten(1)[:, :1].double() / 255
        return [block_sum(full.expand(-1, width) * CLIP / np.sqrt(width), labels * 0, 1, CLIP)]

    return np.stack([steps.step(rows)[0].flatten().double().numpy() for _ in range(steps.total)])


def decoded(released: np.ndarray) -> np.ndarray:
    """y: each step with its weighted past, whose noise should be independent."""
    weights = band_weights(BANDS, MOMENTUM)
    out = np.zeros_like(released)
    for lag, weight in enumerate(weights):
        out[lag:] += weight * released[: len(released) - lag]
    return out


@pytest.fixture(scope="module")
def noise() -> np.ndarray:
    """(steps, WIDTH) of a run in which nobody adds anything."""
    return releases(1.0, seed=7, white=False, width=WIDTH) / (MULTIPLIER * CLIP)


def test_weighted_with_its_past_the_noise_is_independent_and_of_the_claimed_deviation(noise: np.ndarray) -> None:
    fresh = decoded(noise)
    covariance = fresh @ fresh.T / WIDTH
    pairs = len(fresh) * (len(fresh) + 1) / 2
    z = stats.norm.isf(UNLIKELY / pairs / 2)
    tolerance = z * np.sqrt(np.where(np.eye(len(fresh)), 2.0, 1.0) / WIDTH) + 1e-3  # and cells of 2^-10 deviations
    assert (np.abs(covariance - np.eye(len(fresh))) < tolerance).all()
    for row in fresh:
        assert stats.kstest(row, "norm").pvalue > UNLIKELY / len(fresh)


def test_the_noise_of_steps_has_the_covariance_of_the_inverse(noise: np.ndarray) -> None:
    steps = len(noise)
    strategy = sum(
        np.diag(np.full(steps - lag, weight), -lag) for lag, weight in enumerate(band_weights(BANDS, MOMENTUM))
    )
    inverse = np.linalg.inv(strategy)
    expected = inverse @ inverse.T
    spread = np.sqrt(np.outer(np.diag(expected), np.diag(expected)) + expected**2)  # of a product of two normals
    z = stats.norm.isf(UNLIKELY / steps**2)
    assert (np.abs(noise @ noise.T / WIDTH - expected) < z * spread / np.sqrt(WIDTH) + 0.01).all()
    assert expected[-1, -1] > 2, "a step alone has more noise; it is their sum that has less"


def test_all_that_a_unit_adds_to_a_block_is_one_sensitivity_long() -> None:
    """Sampled with certainty and without noise in the way: the two worlds' y differ by a vector of length 1 per block.

    Coins and noise are the same in both runs.
    """
    without, present = (decoded(releases(1.0, seed=3, white=white, width=16)) for white in (False, True))
    moved = np.linalg.norm((present - without) / CLIP, axis=1)
    turn = int(np.argmax(moved > 1e-3))
    assert turn < BANDS
    weights = band_weights(BANDS, MOMENTUM)
    for first in range(turn, len(moved), BANDS):
        block = moved[first : first + BANDS]
        np.testing.assert_allclose(block, weights[: len(block)], atol=0.02)  # cells of 2^-10 deviations in 16 numbers
        assert np.linalg.norm(block) < 1.02
