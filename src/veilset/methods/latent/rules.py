"""Rules of latent: how many directions to estimate, and whether a classifier is worth its share. Public facts alone."""

import math

from veilset.core.errors import InputError
from veilset.privacy.vault import PublicFacts

_FEWEST_PER_DIRECTION = 2
_MOST_NOISE = 0.25  # in a direction, against the public variance
# A classifier's share, and the units of a class over the noise of one sum at which it begins to be worth that.
_TEACHER_SHARE, _WORTH_A_TEACHER = 0.4, 4000
_MOST_NOISE_OF_MEANS = 0.5  # on all of them together, against the public deviation of one


def units_of_a_class(facts: PublicFacts) -> float:
    """How many units a class has, or count for a finding."""
    if facts.findings:  # half of the units have one, as far as is known, and share their weight among all of theirs
        return facts.units / 2 / math.sqrt(1 + facts.classes / 2)
    return facts.units / facts.classes


def teacher_share(units_of_a_class: float, noise_of_one_sum: float) -> float:
    """The share of the privacy for a classifier that labels: docs/notes/latent.md has the trials."""
    return _TEACHER_SHARE if units_of_a_class >= _WORTH_A_TEACHER * noise_of_one_sum else 0.0


def mean_direction_count(latent_size: int, directions: int, units_per_class: float, noise: float) -> int:
    """In how many directions K to estimate means beside the covariance of the first k.

    In public coordinates the clip norm is about sqrt(K), and the noise on all K means of a class of m units together
    has length K noise / (a m), where a^2 = 2K / (2K + k^2) is the means' share. K is the largest number for which this
    is at most a half.
    """
    longest, half = _MOST_NOISE_OF_MEANS * units_per_class / noise, directions**2 / 4
    return min(latent_size, max(directions, int(math.sqrt(half**2 + longest**2) - half)))


def direction_count(latent_size: int, units_per_class: float, noise: float) -> int:
    """How many directions to estimate: the most in which noise stays below what there is to estimate.

    In public coordinates the clip norm is about sqrt(k). The noise on the covariance of a class of m units is then a
    symmetric matrix whose largest eigenvalue is about k sqrt(2k) noise / m (Wigner). Variances are about 1, and what is
    to be estimated is by how much they differ from 1: k is the largest number for which the noise is at most a quarter.
    It is also at most m/2, because fewer units say nothing.
    """
    by_noise = (_MOST_NOISE * units_per_class / (math.sqrt(2) * noise)) ** (2 / 3)
    count = int(min(latent_size, by_noise, units_per_class / _FEWEST_PER_DIRECTION))
    if count < 1:
        raise InputError(
            f"About {units_per_class:.0f} units a class with noise {noise:.3g} times a unit's weight leave nothing to "
            "estimate. Use more units, fewer classes or a larger epsilon."
        )
    return count
