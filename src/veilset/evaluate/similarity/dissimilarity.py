"""How little synthetic images look like single images of another set: their nearest neighbours, by features and SSIM.

A release that shows private images would stand out here. Looking different proves nothing about privacy: that is
what the guarantee is for, and attacks measure (veilset attack).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from veilset.core.randomness import numpy_generator
from veilset.core.records import Images
from veilset.evaluate.metrics import Measurement
from veilset.evaluate.similarity.features import Features
from veilset.evaluate.similarity.fidelity import FidelityScore, Reference, distances

_CANDIDATES = 3
_CONSTANTS = (0.01**2, 0.03**2)
_DEVIATION, _TRUNCATE = 1.5, 3.5  # the 11 x 11 window of the paper
_RESAMPLES = 200


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """For each synthetic image its nearest image of the other set: the row, the distance, and the likeness."""

    rows: NDArray[np.int64]
    distance: NDArray[np.float64]
    likeness: NDArray[np.float64]


def nearest(synthetic: Images, features: Features, others: Images, other_features: Features) -> Nearest:
    """The most alike of the three nearest by features, for each synthetic image."""
    near = np.argsort(distances(features, other_features), axis=1)[:, :_CANDIDATES]
    likeness = np.array(
        [[ssim(image, others[row]) for row in rows] for image, rows in zip(synthetic, near, strict=True)]
    )
    best = likeness.argmax(axis=1)
    each = np.arange(len(synthetic))
    rows = near[each, best]
    gap = np.linalg.norm(features - other_features[near[:, 0]], axis=1)
    return Nearest(rows=rows, distance=gap, likeness=likeness[each, best])


def dissimilarity(found: Nearest, against: Reference) -> list[FidelityScore]:
    """Mean distance and likeness of nearest neighbours, and the likeness of the most alike hundredth."""

    def mean(values: NDArray[np.float64]) -> float:
        return float(values.mean())

    def top(values: NDArray[np.float64]) -> float:
        return float(np.quantile(values, 0.99))

    return [
        FidelityScore(name=name, higher_is_better=better, against=against, measured=_resampled(values, of))
        for name, better, values, of in (
            ("nearest_distance", True, found.distance, mean),
            ("nearest_ssim", False, found.likeness, mean),
            ("nearest_ssim_p99", False, found.likeness, top),
        )
    ]


def ssim(first: Images, second: Images) -> float:
    """The structural similarity of two images (H, W, C) (Wang et al. 2004): 1 for equal ones, about 0 for unrelated."""
    x, y = first.astype(np.float64) / 255, second.astype(np.float64) / 255

    def blurred(values: NDArray[np.float64]) -> Any:
        return gaussian_filter(values, sigma=(_DEVIATION, _DEVIATION, 0), truncate=_TRUNCATE)

    mean_x, mean_y = blurred(x), blurred(y)
    variance_x, variance_y = blurred(x * x) - mean_x**2, blurred(y * y) - mean_y**2
    together = blurred(x * y) - mean_x * mean_y
    light, contrast = _CONSTANTS
    likeness = (2 * mean_x * mean_y + light) * (2 * together + contrast)
    likeness /= (mean_x**2 + mean_y**2 + light) * (variance_x + variance_y + contrast)
    edge = int(_TRUNCATE * _DEVIATION + 0.5)  # where the window would reach past the image
    inner = likeness[edge:-edge, edge:-edge] if min(x.shape[:2]) > 2 * edge else likeness
    return float(inner.mean())


def _resampled(values: NDArray[np.float64], of: Callable[[NDArray[np.float64]], float]) -> Measurement:
    """A value of a sample with its bootstrap interval."""
    coins = numpy_generator(0, "evaluation/resampling")
    again = [of(values[coins.integers(0, len(values), len(values))]) for _ in range(_RESAMPLES)]
    low, high = np.quantile(again, [0.025, 0.975])
    value = of(values)
    return Measurement(value=value, interval=(min(float(low), value), max(float(high), value)), n=len(values))
