"""How useful a release is: students that saw nothing but the release, scored on real test images.

Privacy: reads a private test set, so its results are measurements for the data holder and not part of a release.
Nothing is chosen by the test set: the recipe is fixed, the model is that of the last epoch, and every seed counts.
"""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.special import expit, softmax

from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Images, Labels, Records
from veilset.evaluate.metrics import Accuracy, BalancedAccuracy, ClassRecall, Measurement
from veilset.evaluate.utility.confidence import Auc, CalibrationError, Probabilities
from veilset.evaluate.utility.findings import each_as_json, finding_recall, scores_of_each, scores_of_findings
from veilset.models import build_network
from veilset.training.classifier import SoftLabels, predict, train_classifier
from veilset.training.settings import TrainingConfig

_READ_AT_ONCE = 2048


# Over the predicted classes, and over the probabilities behind them.
_OF_CLASSES = (Accuracy(), BalancedAccuracy())
_OF_PROBABILITIES = (Auc(), CalibrationError())
METRICS = (*_OF_CLASSES, *_OF_PROBABILITIES)


@dataclass(frozen=True, kw_only=True)
class StudentScore:
    """What one student reached on the test set: every metric of `METRICS` by name, and the recall of each class.

    Of findings the metrics are those of `findings.METRICS`, and each finding has all of them.
    """

    seed: int
    values: Mapping[str, Measurement]
    per_class: tuple[Measurement, ...]
    seconds: float
    per_finding: tuple[Mapping[str, Measurement], ...] = ()
    probabilities: Probabilities | None = field(default=None, repr=False, compare=False)

    @property
    def accuracy(self) -> Measurement:
        """The share of correct answers."""
        return self.values[Accuracy.name]


@dataclass(frozen=True, kw_only=True)
class UtilityResult:
    """The scores of all students of one release."""

    student: str
    scores: tuple[StudentScore, ...]
    class_names: tuple[str, ...]
    train_images: int
    test_images: int
    seconds: float

    @property
    def accuracy(self) -> float:
        """The mean accuracy over the students."""
        return statistics.fmean(score.accuracy.value for score in self.scores)

    @property
    def balanced_accuracy(self) -> float:
        """The mean balanced accuracy over the students."""
        return statistics.fmean(score.values[BalancedAccuracy.name].value for score in self.scores)

    def to_json(self) -> dict[str, Any]:
        """The result under the keys of the command line.

        Of every metric its mean over the students, its standard deviation over them (0 for a single one, which has no
        spread to show) and its 95 % interval. A class that the test set lacks has recall null, and AUC is null where
        the test set holds one class only.
        """
        result: dict[str, Any] = {"student": self.student}
        for name in self.scores[0].values:
            measured = [score.values[name] for score in self.scores]
            values = [measurement.value for measurement in measured]
            result[name] = _number(statistics.fmean(values))
            result[f"{name}_std"] = _number(statistics.stdev(values)) if len(values) > 1 else 0.0
            result[f"{name}_interval"] = _mean_interval(measured)
        if self.scores[0].per_finding:
            each, counts = [score.per_finding for score in self.scores], [one.n for one in self.scores[0].per_class]
            result["per_finding"] = each_as_json(self.class_names, each, counts)
        return result | {
            "per_class": [self._class_json(label) for label in range(len(self.class_names))],
            "seeds": [
                {name: _number(measurement.value) for name, measurement in score.values.items()}
                | {"seed": score.seed, "seconds": round(score.seconds, 2)}
                for score in self.scores
            ],
            "train_images": self.train_images,
            "test_images": self.test_images,
            "seconds": round(self.seconds, 2),
            "not_for_release": True,
        }

    def _class_json(self, label: int) -> dict[str, Any]:
        recalls = [score.per_class[label] for score in self.scores]
        return {
            "label": label,
            "name": self.class_names[label],
            "recall": _number(statistics.fmean(recall.value for recall in recalls)),
            "interval": _mean_interval(recalls),
            "n": recalls[0].n,
        }


def evaluate_utility(
    images: Images,
    labels: Labels,
    soft_labels: SoftLabels | None,
    classes: int,
    test: Records,
    *,
    student: str = "convnet",
    seeds: int = 3,
    first_seed: int = 0,
    norm: str = "group",
    config: TrainingConfig | None = None,
    device: str = "cpu",
    progress: Progress = SILENT,
) -> UtilityResult:
    """Train `seeds` students on the released images alone and score each on `test`.

    Args:
        images: the release's images, uint8 (N, H, W, C).
        labels: their labels.
        soft_labels: their soft labels (N, classes), matched instead of the labels where the release has them.
        classes: number of classes of the release.
        test: real records that the release was not made from.
        student: a name of `models.NETWORKS`, or `module:function`.
        seeds: number of students; they differ in first weights, order and augmentation.
        first_seed: the seed of the first student; the others count on from it.
        norm: normalisation of built-in students.
        config: the training recipe; None is the default one.
        device: where to train.
        progress: is told steps, never scores.
    """
    if seeds < 1:
        raise InputError(f"Expected at least 1 seed, got {seeds}.")
    require_same_kind(images, labels, soft_labels, classes, test)
    started = time.perf_counter()
    shape = (images.shape[1], images.shape[2], images.shape[3])
    scores = []
    for seed in range(first_seed, first_seed + seeds):
        began = time.perf_counter()
        network = build_network(student, shape=shape, classes=classes, norm=norm, seed=seed)
        train_classifier(
            network, images, labels, soft_labels, config=config, seed=seed, device=device, progress=progress
        )
        scores.append(score(network, test, classes, seed=seed, began=began))
    return UtilityResult(
        student=student,
        scores=tuple(scores),
        class_names=tuple(test.class_names),
        train_images=len(images),
        test_images=len(test.labels),
        seconds=time.perf_counter() - started,
    )


def score(
    network: torch.nn.Module, test: Records, classes: int, *, seed: int = 0, began: float | None = None
) -> StudentScore:
    """What a trained network reaches on `test`; its seconds count from `began`."""
    began = time.perf_counter() if began is None else began
    probabilities = classify(network, test)
    if probabilities.shape[1] != classes:
        raise InputError(f"Expected a network with {classes} outputs, got {probabilities.shape[1]}.")
    if test.labels.ndim == 2:
        return StudentScore(
            seed=seed,
            values=scores_of_findings(test.labels, probabilities),
            per_class=tuple(finding_recall(test.labels[:, k], probabilities[:, k]) for k in range(classes)),
            seconds=time.perf_counter() - began,
            per_finding=scores_of_each(test.labels, probabilities),
            probabilities=probabilities,
        )
    predictions = probabilities.argmax(axis=1).astype(np.int64)
    values = {metric.name: metric(test.labels, predictions) for metric in _OF_CLASSES}
    values |= {metric.name: metric(test.labels, probabilities) for metric in _OF_PROBABILITIES}
    per_class = tuple(ClassRecall(label)(test.labels, predictions) for label in range(classes))
    return StudentScore(
        seed=seed,
        values=values,
        per_class=per_class,
        seconds=time.perf_counter() - began,
        probabilities=probabilities,
    )


def classify(network: torch.nn.Module, records: Records) -> Probabilities:
    """The class probabilities of each record, or one for each finding where the records have findings.

    Images are read in parts, so large sets need little memory.
    """
    rows = np.arange(len(records.labels), dtype=np.int64)
    logits = [
        predict(network, records.read(rows[start : start + _READ_AT_ONCE]))
        for start in range(0, len(rows), _READ_AT_ONCE)
    ]
    whole = np.concatenate(logits).astype(np.float64)
    probabilities: Probabilities = expit(whole) if records.labels.ndim == 2 else softmax(whole, axis=1)
    return probabilities


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _mean_interval(measurements: Sequence[Measurement]) -> list[float]:
    """The students' mean bounds: they share one test set, so averaging students does not narrow the interval."""
    return [statistics.fmean(measurement.interval[side] for measurement in measurements) for side in (0, 1)]


def require_same_kind(
    images: Images, labels: Labels, soft_labels: SoftLabels | None, classes: int, test: Records
) -> None:
    """Refuse a test set that the release's students cannot be scored on, before anything is trained."""
    if images.ndim != 4 or len(images) == 0 or len(labels) != len(images):
        raise InputError(f"Expected images (N, H, W, C) with N labels, got {images.shape} and {len(labels)} labels.")
    if labels.ndim != test.labels.ndim:
        have, want = ("several findings" if one.ndim == 2 else "one class" for one in (test.labels, labels))
        raise InputError(
            f"Expected test images with {want} each, as in the release, got {have}. Pass --labels or --findings."
        )
    if labels.ndim == 1 and (labels.min() < 0 or labels.max() >= classes):
        raise InputError(f"Expected labels 0 to {classes - 1}, got {labels.min()} to {labels.max()}.")
    if soft_labels is not None and soft_labels.shape != (len(images), classes):
        raise InputError(f"Expected soft labels of shape ({len(images)}, {classes}), got {soft_labels.shape}.")
    if len(test.labels) == 0:
        raise InputError("Expected at least one test image, got an empty test set.")
    if tuple(test.shape) != images.shape[1:]:
        have, want = ("x".join(map(str, shape)) for shape in (test.shape, images.shape[1:]))
        raise InputError(
            f"Expected test images of {want} as in the release, got {have}. Pass --size and --channels for it."
        )
    if len(test.class_names) != classes or (test.labels.ndim == 1 and test.labels.max() >= classes):
        raise InputError(
            f"Expected a test set with the release's {classes} classes, got {len(test.class_names)}. "
            "Check --labels and that both name the same classes."
        )
