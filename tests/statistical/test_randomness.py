"""The randomness itself: scale, shape and independence of the noise, rate of the sampler.

Each tolerance is derived: the tests use a fixed seed, and a sound sampler would fail a fresh seed with probability
below 1e-6. The operating system's entropy runs through the same code; one test looks at that, too.
"""

import numpy as np
import pytest
from scipy import stats

from veilset.privacy.mechanisms.sums import GridSum
from veilset.privacy.noise import NoiseSource

COUNT = 2_000_000
UNLIKELY = 1e-6


@pytest.fixture(scope="module", params=["seeded", "entropy"])
def drawn(request: pytest.FixtureRequest) -> np.ndarray:
    return NoiseSource(11 if request.param == "seeded" else None).normal(COUNT).numpy()


def test_mean_and_variance(drawn: np.ndarray) -> None:
    z = stats.norm.isf(UNLIKELY / 2)
    assert abs(drawn.mean()) < z / np.sqrt(COUNT)
    assert abs(drawn.var() - 1) < z * np.sqrt(2 / COUNT)


def test_normality(drawn: np.ndarray) -> None:
    assert stats.kstest(drawn, "norm").pvalue > UNLIKELY


@pytest.mark.parametrize("threshold", [2.0, 3.0, 4.0, 4.5])
def test_tails(drawn: np.ndarray, threshold: float) -> None:
    expected = 2 * stats.norm.sf(threshold)
    seen = int((np.abs(drawn) > threshold).sum())
    assert stats.binomtest(seen, COUNT, expected).pvalue > UNLIKELY


def test_pairs_are_independent(drawn: np.ndarray) -> None:
    half = 1 << 17  # Box-Muller pairs lie half a chunk apart
    z = stats.norm.isf(UNLIKELY / 2) / np.sqrt(half)
    first, second = drawn[:half], drawn[half : 2 * half]
    assert abs(np.corrcoef(first, second)[0, 1]) < z
    assert abs(np.corrcoef(first**2, second**2)[0, 1]) < 2 * z
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < stats.norm.isf(UNLIKELY / 2) / np.sqrt(COUNT)


@pytest.mark.parametrize("rate", [0.0001, 0.004, 0.3, 0.9])
def test_coins_fall_at_their_rate(rate: float) -> None:
    seen = int(NoiseSource(5).coins(COUNT, rate).sum())
    assert stats.binomtest(seen, COUNT, rate).pvalue > UNLIKELY


def test_choices_are_uniform() -> None:
    drawn = NoiseSource(5).choices(np.full(700_000, 7))
    assert stats.chisquare(np.bincount(drawn, minlength=7)).pvalue > UNLIKELY


@pytest.mark.parametrize(("clip_norm", "noise_multiplier"), [(1.0, 1.0), (0.01, 4.0), (30.0, 0.2)])
def test_a_released_sum_has_the_noise_that_its_event_claims(clip_norm: float, noise_multiplier: float) -> None:
    width = 200_000
    total = GridSum(1, width, clip_norm)
    released = total.release(NoiseSource(3), noise_multiplier).numpy()[0] / (clip_norm * noise_multiplier)
    z = stats.norm.isf(UNLIKELY / 2)
    assert abs(released.mean()) < z / np.sqrt(width) + 2**-10
    assert abs(released.var() - 1) < z * np.sqrt(2 / width) + 2**-20
