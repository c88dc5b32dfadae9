"""Scores of students on parts of the test set, each with its interval: is a release as good for everybody?"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from veilset.core.records import Labels
from veilset.data.subgroups import Subgroups
from veilset.evaluate.metrics import Accuracy, BalancedAccuracy, Measurement
from veilset.evaluate.utility.confidence import Auc, Probabilities
from veilset.evaluate.utility.findings import scores_of_findings


def scores_by(parts: Sequence[Subgroups], labels: Labels, students: Sequence[Probabilities]) -> list[dict[str, Any]]:
    """For each value of each column its number of images and the students' mean scores, as JSON-ready data.

    A score that a part cannot tell (the AUC of a part with one class) is null.
    """
    found = []
    for part in parts:
        for number, name in enumerate(part.names):
            rows = np.flatnonzero(part.members == number)
            entry: dict[str, Any] = {"column": part.column, "name": name, "n": len(rows)}
            if len(rows):
                entry |= _means([_scores(labels[rows], probabilities[rows]) for probabilities in students])
            found.append(entry)
    return found


def _scores(labels: Labels, probabilities: Probabilities) -> dict[str, Measurement]:
    if labels.ndim == 2:
        return scores_of_findings(labels, probabilities)
    predictions = probabilities.argmax(axis=1).astype(np.int64)
    return {
        "accuracy": Accuracy()(labels, predictions),
        "balanced_accuracy": BalancedAccuracy()(labels, predictions),
        "auc": Auc()(labels, probabilities),
    }


def _means(students: Sequence[dict[str, Measurement]]) -> dict[str, Any]:
    """Means over the students of values and bounds: they share the images, so that averaging narrows nothing."""
    found: dict[str, Any] = {}
    for name in students[0]:
        value = float(np.mean([student[name].value for student in students]))
        found[name] = None if math.isnan(value) else value
        found[f"{name}_interval"] = [
            float(np.mean([student[name].interval[side] for student in students])) for side in (0, 1)
        ]
    return found
