"""Scores of class probabilities: how well they rank records (AUC) and how far they can be believed (calibration)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.core.records import Labels
from veilset.evaluate.metrics import Z95, Measurement, wilson_interval

Probabilities = NDArray[np.float64]  # (N, K), rows sum to one

_BINS = 15  # Guo et al. 2017, "On calibration of modern neural networks", and torchmetrics' default


@dataclass(frozen=True)
class Auc:
    """The area under the ROC curve of each class against the rest, averaged over the classes that the test set holds.

    The interval is DeLong's (1988) for the average: a record adds its placement to the curve of every class, so the
    classes' errors are correlated and are added up record by record. It is taken on the logit scale, which keeps it
    within 0 and 1.
    """

    name: ClassVar[str] = "auc"
    higher_is_better: ClassVar[bool] = True
    needs_private_data: ClassVar[bool] = True

    def __call__(self, labels: Labels, probabilities: Probabilities) -> Measurement:
        """Score the probabilities; NaN where the test set holds a single class."""
        _require_rows(labels, probabilities)
        present = np.unique(labels)
        if len(present) < 2:
            return Measurement(value=math.nan, interval=(0.0, 1.0), n=len(labels))
        influence = np.zeros(len(labels))
        areas = []
        for label in present:
            area, pulls = area_and_pulls(labels == label, probabilities[:, label])
            areas.append(area)
            influence += pulls / len(present)
        value = float(np.mean(areas))
        error = float(np.sqrt(np.mean(influence**2) / len(labels)))
        return Measurement(value=value, interval=logit_interval(value, error, _smallest(labels)), n=len(labels))


@dataclass(frozen=True)
class CalibrationError:
    """The expected calibration error: the mean gap between confidence and accuracy over 15 equal bins of confidence.

    Its interval takes the bins and the sign of each gap as given, so it leaves out the small upward bias of bins with
    few records.
    """

    name: ClassVar[str] = "calibration_error"
    higher_is_better: ClassVar[bool] = False
    needs_private_data: ClassVar[bool] = True

    def __call__(self, labels: Labels, probabilities: Probabilities) -> Measurement:
        """Score the probabilities."""
        _require_rows(labels, probabilities)
        confidence = probabilities.max(axis=1)
        gap = confidence - (probabilities.argmax(axis=1) == labels)  # > 0 where the student is too sure
        bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
        sums = np.bincount(bins, weights=gap, minlength=_BINS)
        value = float(np.abs(sums).sum() / len(labels))
        reach = Z95 * float(np.std(gap * np.sign(sums)[bins])) / math.sqrt(len(labels))
        return Measurement(value=value, interval=(max(0.0, value - reach), min(1.0, value + reach)), n=len(labels))


def area_and_pulls(mine: NDArray[np.bool_], scores: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """The area of one class and how much each record pulls at it."""
    ours, others = np.sort(scores[mine]), np.sort(scores[~mine])
    # The share of the other side that a record beats, ties counted half.
    wins = (np.searchsorted(others, scores[mine], "left") + np.searchsorted(others, scores[mine], "right")) / 2
    losses = (np.searchsorted(ours, scores[~mine], "left") + np.searchsorted(ours, scores[~mine], "right")) / 2
    area = float(wins.mean() / len(others))
    pulls = np.empty(len(scores))
    pulls[mine] = (wins / len(others) - area) * len(scores) / len(ours)
    pulls[~mine] = (1 - losses / len(ours) - area) * len(scores) / len(others)
    return area, pulls


def logit_interval(value: float, error: float, smallest: int) -> tuple[float, float]:
    """A 95 % interval of an area with this standard error, on the logit scale."""
    if error == 0 or not 0 < value < 1:
        # Perfect order has no spread to estimate from; what the smallest class can show at most is honest.
        return wilson_interval(value * smallest, smallest)
    centre, reach = math.log(value / (1 - value)), Z95 * error / (value * (1 - value))
    return 1 / (1 + math.exp(reach - centre)), 1 / (1 + math.exp(-reach - centre))


def _smallest(labels: Labels) -> int:
    return int(np.unique(labels, return_counts=True)[1].min())


def _require_rows(labels: Labels, probabilities: Probabilities) -> None:
    if len(labels) == 0 or probabilities.ndim != 2 or len(probabilities) != len(labels):
        raise InputError(
            f"Expected one row of probabilities for each of at least one test label, got shapes {labels.shape} of "
            f"labels and {probabilities.shape} of probabilities."
        )
    if labels.max() >= probabilities.shape[1]:
        raise InputError(f"Expected labels below {probabilities.shape[1]}, got {labels.max()}.")
    if not np.isfinite(probabilities).all():
        raise InputError("The student's probabilities are not finite: its training diverged.")
