"""Scores of several findings per image: for each finding, and their mean.

A finding is rare more often than not, so a share of right answers says little of it. AUC and average precision look at
the order alone; balanced accuracy takes a finding as seen where its probability is at least one half.

The interval of a mean AUC is DeLong's, added up record by record, because findings of one image go together. Means of
the other scores have the mean of the findings' bounds, which is wide enough however they go together.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError
from veilset.core.records import Labels
from veilset.evaluate.metrics import Z95, Accuracy, BalancedAccuracy, ClassRecall, Measurement, wilson_interval
from veilset.evaluate.utility.confidence import Probabilities, area_and_pulls, logit_interval

THRESHOLD = 0.5

OneFinding = Callable[[Labels, NDArray[np.float64]], Measurement]
"""From zeros and ones (N,) and probabilities (N,) to a score; NaN where the test set has only one of the two."""


def finding_auc(labels: Labels, probabilities: NDArray[np.float64]) -> Measurement:
    """How often an image with the finding is ranked above one without it."""
    positives = int(labels.sum())
    if not 0 < positives < len(labels):
        return Measurement(value=math.nan, interval=(0.0, 1.0), n=positives)
    area, pulls = area_and_pulls(labels == 1, probabilities)
    error = float(np.sqrt(np.mean(pulls**2) / len(labels)))
    smallest = min(positives, len(labels) - positives)
    return Measurement(value=area, interval=logit_interval(area, error, smallest), n=positives)


def finding_average_precision(labels: Labels, probabilities: NDArray[np.float64]) -> Measurement:
    """The mean precision at the ranks of the images with the finding; ties share their ranks.

    Its interval is the logit interval of Boyd, Eng and Page (2013), which counts the images with the finding.
    """
    positives = int(labels.sum())
    if positives == 0:
        return Measurement(value=math.nan, interval=(0.0, 1.0), n=0)
    order = np.argsort(-probabilities, kind="stable")
    found, ranked = labels[order], probabilities[order]
    ends = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)  # where a run of ties ends
    hits = np.cumsum(found)[ends]
    value = float((np.diff(hits, prepend=0) * hits / (ends + 1)).sum() / positives)
    if not 0 < value < 1:
        return Measurement(value=value, interval=wilson_interval(value * positives, positives), n=positives)
    centre, reach = math.log(value / (1 - value)), Z95 / math.sqrt(positives * value * (1 - value))
    return Measurement(
        value=value, interval=(1 / (1 + math.exp(reach - centre)), 1 / (1 + math.exp(-reach - centre))), n=positives
    )


def finding_balanced_accuracy(labels: Labels, probabilities: NDArray[np.float64]) -> Measurement:
    """The mean of the shares of images with and without the finding that are told right; a guess scores one half."""
    positives = int(labels.sum())
    if not 0 < positives < len(labels):
        return Measurement(value=math.nan, interval=(0.0, 1.0), n=positives)
    found = BalancedAccuracy()(labels, _seen(probabilities))
    return Measurement(value=found.value, interval=found.interval, n=positives)


def finding_accuracy(labels: Labels, probabilities: NDArray[np.float64]) -> Measurement:
    """The share of images that are told right."""
    return Accuracy()(labels, _seen(probabilities))


def finding_recall(labels: Labels, probabilities: NDArray[np.float64]) -> Measurement:
    """The share of the images with the finding in which it is seen."""
    return ClassRecall(1)(labels, _seen(probabilities))


@dataclass(frozen=True)
class MeanOverFindings:
    """A score of one finding, averaged over the findings that the test set can tell."""

    name: str
    of_one: OneFinding
    higher_is_better: ClassVar[bool] = True
    needs_private_data: ClassVar[bool] = True

    def __call__(self, labels: Labels, probabilities: Probabilities) -> Measurement:
        """Score the probabilities (N, F) against zeros and ones (N, F)."""
        require_matrices(labels, probabilities)
        found = [self.of_one(labels[:, column], probabilities[:, column]) for column in range(labels.shape[1])]
        told = [one for one in found if not math.isnan(one.value)]
        if not told:
            return Measurement(value=math.nan, interval=(0.0, 1.0), n=len(labels))
        value = float(np.mean([one.value for one in told]))
        low, high = (float(np.mean([one.interval[side] for one in told])) for side in (0, 1))
        if self.of_one is finding_auc:
            low, high = _joint_interval(labels, probabilities, value, low, high)
        return Measurement(value=value, interval=(low, high), n=len(labels))


METRICS = (
    MeanOverFindings("accuracy", finding_accuracy),
    MeanOverFindings("balanced_accuracy", finding_balanced_accuracy),
    MeanOverFindings("auc", finding_auc),
    MeanOverFindings("average_precision", finding_average_precision),
)
_OF_ONE: dict[str, OneFinding] = {metric.name: metric.of_one for metric in METRICS} | {"recall": finding_recall}


def scores_of_findings(labels: Labels, probabilities: Probabilities) -> dict[str, Measurement]:
    """Every mean score by name."""
    return {metric.name: metric(labels, probabilities) for metric in METRICS}


def scores_of_each(labels: Labels, probabilities: Probabilities) -> tuple[dict[str, Measurement], ...]:
    """For each finding its scores by name; `n` counts the images that have it."""
    require_matrices(labels, probabilities)
    return tuple(
        {name: of_one(labels[:, column], probabilities[:, column]) for name, of_one in _OF_ONE.items()}
        for column in range(labels.shape[1])
    )


def each_as_json(
    names: Sequence[str], students: Sequence[Sequence[Mapping[str, Measurement]]], positives: Sequence[int]
) -> list[dict[str, object]]:
    """Means over the students, by finding, as JSON-ready data."""
    found = []
    for column, name in enumerate(names):
        entry: dict[str, object] = {"label": column, "name": name, "n": positives[column]}
        for metric in _OF_ONE:
            measured = [student[column][metric] for student in students]
            value = float(np.mean([one.value for one in measured]))
            entry[metric] = None if math.isnan(value) else value
            entry[f"{metric}_interval"] = [float(np.mean([one.interval[side] for one in measured])) for side in (0, 1)]
        found.append(entry)
    return found


def require_matrices(labels: Labels, probabilities: Probabilities) -> None:
    """Refuse what are not as many findings as probabilities of them."""
    if labels.ndim != 2 or labels.shape != probabilities.shape or len(labels) == 0:
        raise InputError(
            f"Expected a probability for each finding of at least one image, got shapes {labels.shape} of findings and "
            f"{probabilities.shape} of probabilities."
        )
    if not np.isfinite(probabilities).all():
        raise InputError("The student's probabilities are not finite: its training diverged.")


def _seen(probabilities: NDArray[np.float64]) -> NDArray[np.int64]:
    return (probabilities >= THRESHOLD).astype(np.int64)


def _joint_interval(
    labels: Labels, probabilities: Probabilities, value: float, low: float, high: float
) -> tuple[float, float]:
    """DeLong's interval of the mean area: what each record pulls at all of the findings together."""
    positives = labels.sum(axis=0)
    columns = [column for column, count in enumerate(positives) if 0 < count < len(labels)]
    pulls = sum(area_and_pulls(labels[:, column] == 1, probabilities[:, column])[1] for column in columns)
    error = float(np.sqrt(np.mean((np.asarray(pulls) / len(columns)) ** 2) / len(labels)))
    if error == 0 or not 0 < value < 1:
        return low, high
    return logit_interval(value, error, 1)
