"""Scores of a classifier, each with an interval.

Intervals are Wilson's (1927) for shares and, for their average over classes, the MOVER combination of the classes'
Wilson intervals (Zou and Donner, 2008): closed forms that stay honest at 0 and 1, where a bootstrap collapses.
They speak of the finite test set only, not of the spread over students.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.core.records import Labels

Z95 = 1.959963984540054  # the normal quantile of a two-sided 95 % interval

Predictions = NDArray[np.int64]  # (N,)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A value, its 95 % interval and the number of test records behind it; without records the value is NaN."""

    value: float
    interval: tuple[float, float]
    n: int


class Metric(Protocol):
    """A score of predictions against the true labels."""

    @property
    def name(self) -> str:
        """The metric's name in results."""

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger value is a better one."""

    @property
    def needs_private_data(self) -> bool:
        """Whether it reads private records, so that its result must not be published as part of a release."""

    def __call__(self, labels: Labels, predictions: Predictions) -> Measurement:
        """Score the predictions."""


def wilson_interval(hits: float, n: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's interval for a share of `hits` among `n`; (0, 1) when there is nothing to go by."""
    if n == 0:
        return 0.0, 1.0
    share = hits / n
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    # At 0 and n hits the bound is 0 or 1 exactly; rounding must not move it past the value.
    low = 0.0 if hits == 0 else max(0.0, centre - reach)
    high = 1.0 if hits == n else min(1.0, centre + reach)
    return low, high


@dataclass(frozen=True)
class Accuracy:
    """The share of correct predictions."""

    name: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True
    needs_private_data: ClassVar[bool] = True

    def __call__(self, labels: Labels, predictions: Predictions) -> Measurement:
        """Score the predictions."""
        _require_pairs(labels, predictions)
        return _share(int((labels == predictions).sum()), len(labels))


@dataclass(frozen=True)
class ClassRecall:
    """The share of one class' records that were recognised; NaN where the test set has none."""

    label: int
    higher_is_better: ClassVar[bool] = True
    needs_private_data: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The metric's name in results."""
        return f"recall_{self.label}"

    def __call__(self, labels: Labels, predictions: Predictions) -> Measurement:
        """Score the predictions."""
        _require_pairs(labels, predictions)
        mine = labels == self.label
        return _share(int((predictions[mine] == self.label).sum()), int(mine.sum()))


@dataclass(frozen=True)
class BalancedAccuracy:
    """The mean recall of the classes that the test set holds: a guess scores 1/K whatever the class sizes."""

    name: ClassVar[str] = "balanced_accuracy"
    higher_is_better: ClassVar[bool] = True
    needs_private_data: ClassVar[bool] = True

    def __call__(self, labels: Labels, predictions: Predictions) -> Measurement:
        """Score the predictions."""
        _require_pairs(labels, predictions)
        recalls = [ClassRecall(int(label))(labels, predictions) for label in np.unique(labels)]
        value = float(np.mean([recall.value for recall in recalls]))
        below = math.sqrt(sum((recall.value - recall.interval[0]) ** 2 for recall in recalls)) / len(recalls)
        above = math.sqrt(sum((recall.interval[1] - recall.value) ** 2 for recall in recalls)) / len(recalls)
        return Measurement(value=value, interval=(max(0.0, value - below), min(1.0, value + above)), n=len(labels))


def _share(hits: int, n: int) -> Measurement:
    return Measurement(value=hits / n if n else math.nan, interval=wilson_interval(hits, n), n=n)


def _require_pairs(labels: Labels, predictions: Predictions) -> None:
    if len(labels) == 0 or labels.shape != predictions.shape or labels.ndim != 1:
        raise InputError(
            f"Expected one prediction for each of at least one test label, got shapes {labels.shape} of labels and "
            f"{predictions.shape} of predictions."
        )
