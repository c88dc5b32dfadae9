"""How useful a release is: students that saw nothing but the release, scored on real test images.

Privacy: reads a private test set, so its results are measurements for the data holder and not part of a release.
Nothing is chosen by the test set: the recipe is fixed, the model is that of the last epoch, and every seed counts.
"""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Images, Labels, Records
from veilset.evaluate.metrics import Accuracy, BalancedAccuracy, ClassRecall, Measurement, Predictions
from veilset.models import build_network
from veilset.training.plain import SoftLabels, predict, train_classifier
from veilset.training.recipe import TrainingConfig

_READ_AT_ONCE = 2048


@dataclass(frozen=True, kw_only=True)
class StudentScore:
    """What one student reached on the test set."""

    seed: int
    accuracy: Measurement
    balanced_accuracy: Measurement
    per_class: tuple[Measurement, ...]
    seconds: float


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
    def accuracy_std(self) -> float:
        """The standard deviation over the students; 0 for a single one, which has no spread to show."""
        values = [score.accuracy.value for score in self.scores]
        return statistics.stdev(values) if len(values) > 1 else 0.0

    @property
    def balanced_accuracy(self) -> float:
        """The mean balanced accuracy over the students."""
        return statistics.fmean(score.balanced_accuracy.value for score in self.scores)

    def to_json(self) -> dict[str, Any]:
        """The result under the keys of the command line; a class that the test set lacks has recall null."""
        return {
            "student": self.student,
            "accuracy": self.accuracy,
            "accuracy_std": self.accuracy_std,
            "accuracy_interval": _mean_interval([score.accuracy for score in self.scores]),
            "balanced_accuracy": self.balanced_accuracy,
            "balanced_accuracy_interval": _mean_interval([score.balanced_accuracy for score in self.scores]),
            "per_class": [self._class_json(label) for label in range(len(self.class_names))],
            "seeds": [
                {
                    "seed": score.seed,
                    "accuracy": score.accuracy.value,
                    "balanced_accuracy": score.balanced_accuracy.value,
                    "seconds": round(score.seconds, 2),
                }
                for score in self.scores
            ],
            "train_images": self.train_images,
            "test_images": self.test_images,
            "seconds": round(self.seconds, 2),
            "not_for_release": True,
        }

    def _class_json(self, label: int) -> dict[str, Any]:
        recalls = [score.per_class[label] for score in self.scores]
        value = statistics.fmean(recall.value for recall in recalls)
        return {
            "label": label,
            "name": self.class_names[label],
            "recall": None if math.isnan(value) else value,
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
    _require_same_kind(images, labels, soft_labels, classes, test)
    started = time.perf_counter()
    shape = (images.shape[1], images.shape[2], images.shape[3])
    scores = []
    for seed in range(first_seed, first_seed + seeds):
        began = time.perf_counter()
        network = build_network(student, shape=shape, classes=classes, norm=norm, seed=seed)
        train_classifier(
            network, images, labels, soft_labels, config=config, seed=seed, device=device, progress=progress
        )
        scores.append(_score(classify(network, test), test.labels, classes, seed, time.perf_counter() - began))
    return UtilityResult(
        student=student,
        scores=tuple(scores),
        class_names=tuple(test.class_names),
        train_images=len(images),
        test_images=len(test.labels),
        seconds=time.perf_counter() - started,
    )


def classify(network: torch.nn.Module, records: Records) -> Predictions:
    """The class that `network` gives each record; images are read in parts, so large sets need little memory."""
    rows = np.arange(len(records.labels), dtype=np.int64)
    parts = [
        predict(network, records.read(rows[start : start + _READ_AT_ONCE])).argmax(axis=1)
        for start in range(0, len(rows), _READ_AT_ONCE)
    ]
    return np.concatenate(parts).astype(np.int64)


def _score(predictions: Predictions, labels: Labels, classes: int, seed: int, seconds: float) -> StudentScore:
    return StudentScore(
        seed=seed,
        accuracy=Accuracy()(labels, predictions),
        balanced_accuracy=BalancedAccuracy()(labels, predictions),
        per_class=tuple(ClassRecall(label)(labels, predictions) for label in range(classes)),
        seconds=seconds,
    )


def _mean_interval(measurements: Sequence[Measurement]) -> list[float]:
    """The students' mean bounds: they share one test set, so averaging students does not narrow the interval."""
    return [statistics.fmean(measurement.interval[side] for measurement in measurements) for side in (0, 1)]


def _require_same_kind(
    images: Images, labels: Labels, soft_labels: SoftLabels | None, classes: int, test: Records
) -> None:
    """Refuse a test set that the release's students cannot be scored on, before anything is trained."""
    if images.ndim != 4 or len(images) == 0 or len(labels) != len(images):
        raise InputError(f"Expected images (N, H, W, C) with N labels, got {images.shape} and {len(labels)} labels.")
    if labels.min() < 0 or labels.max() >= classes:
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
    if len(test.class_names) != classes or test.labels.max() >= classes:
        raise InputError(
            f"Expected a test set with the release's {classes} classes, got {len(test.class_names)}. "
            "Check --labels and that both name the same classes."
        )
