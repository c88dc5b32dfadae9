"""How near a set of images comes to another, in public features: FID, KID, precision, recall, density, coverage.

FID: Heusel et al. 2017. KID: Binkowski et al. 2018. Precision and recall: Kynkaanniemi et al. 2019. Density and
coverage: Naeem et al. 2020. All compare the synthetic images with a reference set; whether the result may be published
depends on that reference alone.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.core.randomness import numpy_generator
from veilset.core.records import Labels
from veilset.evaluate.metrics import Z95, Measurement, wilson_interval
from veilset.evaluate.similarity.features import Features

Reference = Literal["private", "public", "none"]

_NEIGHBOURS = 5
_GROUPS = 10  # of the delete-a-group jackknife
_KID_SUBSETS, _KID_SUBSET = 50, 500
_MOST = 4000  # images of each side that distances between all pairs are computed for


@dataclass(frozen=True, kw_only=True)
class FidelityScore:
    """One metric of a release's images against a reference set."""

    name: str
    higher_is_better: bool
    against: Reference
    measured: Measurement

    @property
    def needs_private_data(self) -> bool:
        """Whether private images were compared with."""
        return self.against == "private"

    def to_json(self) -> dict[str, Any]:
        """The score as JSON-ready data."""
        return {
            "name": self.name,
            "value": self.measured.value,
            "interval": list(self.measured.interval),
            "n": self.measured.n,
            "higher_is_better": self.higher_is_better,
            "needs_private_data": self.needs_private_data,
            "against": self.against,
        }


def fidelity(real: Features, synthetic: Features, against: Reference) -> list[FidelityScore]:
    """All metrics of `synthetic` against `real`, by features of one extractor."""
    if real.shape[1] != synthetic.shape[1] or min(len(real), len(synthetic)) <= _NEIGHBOURS + 1:
        raise InputError(
            f"Expected features of one width for more than {_NEIGHBOURS + 1} images on each side, got {real.shape} "
            f"and {synthetic.shape}."
        )
    scores = {
        "fid": (False, _jackknifed(frechet_distance, real, synthetic)),
        "kid": (False, kernel_distance(real, synthetic)),
    }
    shares = neighbourhoods(real[:_MOST], synthetic[:_MOST])
    scores |= {name: (True, measured) for name, measured in shares.items()}
    return [
        FidelityScore(name=name, higher_is_better=better, against=against, measured=measured)
        for name, (better, measured) in scores.items()
    ]


def frechet_distance(real: Features, synthetic: Features) -> float:
    """The Frechet distance of the Gaussians with the two sets' means and covariances."""
    difference = real.mean(axis=0) - synthetic.mean(axis=0)
    first, second = np.cov(real, rowvar=False), np.cov(synthetic, rowvar=False)
    # tr sqrt(AB) is the sum of roots of the eigenvalues of AB, which are real and not negative.
    roots = np.sqrt(np.clip(np.linalg.eigvals(first @ second).real, 0, None)).sum()
    return max(0.0, float(difference @ difference + np.trace(first) + np.trace(second) - 2 * roots))


def kernel_distance(real: Features, synthetic: Features) -> Measurement:
    """The kernel distance: unbiased MMD^2 with the kernel (x'y/d + 1)^3, the mean over random subsets.

    The interval is that of the mean over subsets, which overlap: it shows the noise of subsets, not of the sets.
    """
    size = min(_KID_SUBSET, len(real), len(synthetic))
    coins = numpy_generator(0, "evaluation/kid")
    values = [
        _mmd(
            real[coins.choice(len(real), size, replace=False)],
            synthetic[coins.choice(len(synthetic), size, replace=False)],
        )
        for _ in range(_KID_SUBSETS)
    ]
    value, reach = float(np.mean(values)), Z95 * float(np.std(values, ddof=1)) / math.sqrt(_KID_SUBSETS)
    return Measurement(value=value, interval=(value - reach, value + reach), n=min(len(real), len(synthetic)))


def neighbourhoods(real: Features, synthetic: Features, neighbours: int = _NEIGHBOURS) -> dict[str, Measurement]:
    """Precision, recall, density and coverage by balls that reach to each image's fifth neighbour."""
    between = distances(real, synthetic)  # (R, S)
    real_reach, synthetic_reach = _reach(real, neighbours), _reach(synthetic, neighbours)
    within_real = between <= real_reach[:, None]
    within_synthetic = between <= synthetic_reach[None]
    density = within_real.sum(axis=0) / neighbours
    spread = Z95 * float(density.std()) / math.sqrt(len(density))
    mean = float(density.mean())
    return {
        "precision": _share(np.logical_or.reduce(within_real, axis=0)),
        "recall": _share(np.logical_or.reduce(within_synthetic, axis=1)),
        "density": Measurement(value=mean, interval=(max(0.0, mean - spread), mean + spread), n=len(density)),
        "coverage": _share(between.min(axis=1) <= real_reach),
    }


def diversity(synthetic: Features, labels: Labels) -> Measurement:
    """The mean distance of two images of one class, in the extractor's features; 0 where all are copies."""
    coins = numpy_generator(0, "evaluation/diversity")
    values = []
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        if len(mine) > 1:
            pairs = coins.integers(0, len(mine), (2, 2000))
            pairs = pairs[:, pairs[0] != pairs[1]]
            values.append(np.linalg.norm(synthetic[mine[pairs[0]]] - synthetic[mine[pairs[1]]], axis=1))
    if not values:
        raise InputError("Expected at least two synthetic images of one class.")
    every = np.concatenate(values)
    value, reach = float(every.mean()), Z95 * float(every.std()) / math.sqrt(len(every))
    return Measurement(value=value, interval=(max(0.0, value - reach), value + reach), n=len(labels))


def distances(first: Features, second: Features) -> Features:
    """Euclidean distances between all pairs, (F, S)."""
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1) - 2 * first @ second.T
    found: Features = np.sqrt(np.clip(squares, 0, None))
    return found


def _reach(features: Features, neighbours: int) -> Features:
    """The distance of each row to its k-th nearest other row."""
    found: Features = np.partition(distances(features, features), neighbours, axis=1)[:, neighbours]
    return found


def _share(hits: NDArray[np.bool_]) -> Measurement:
    count = int(hits.sum())
    return Measurement(value=count / len(hits), interval=wilson_interval(count, len(hits)), n=len(hits))


def _mmd(first: Features, second: Features) -> float:
    size = len(first)
    within = [_kernel(part, part) for part in (first, second)]
    off_diagonal = sum(float(kernel.sum()) - float(np.trace(kernel)) for kernel in within) / (size * (size - 1))
    return off_diagonal - 2 * float(_kernel(first, second).mean())


def _kernel(first: Features, second: Features) -> Features:
    kernel: Features = (first @ second.T / first.shape[1] + 1) ** 3
    return kernel


def _jackknifed(distance: Callable[[Features, Features], float], real: Features, synthetic: Features) -> Measurement:
    """A distance with the interval of a jackknife that leaves out a tenth of both sets at a time."""
    value = distance(real, synthetic)
    left_out = [
        distance(real[np.arange(len(real)) % _GROUPS != group], synthetic[np.arange(len(synthetic)) % _GROUPS != group])
        for group in range(_GROUPS)
    ]
    reach = Z95 * math.sqrt((_GROUPS - 1) * float(np.var(left_out)))
    return Measurement(value=value, interval=(max(0.0, value - reach), value + reach), n=min(len(real), len(synthetic)))
