"""One evaluation of a release: students, reference scores, likeness to other images and, if paid for, an accuracy.

The result is one JSON object. Every part says whether private data was needed for it; the report's public version shows
only parts that did without, or that were paid for.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from veilset.core.errors import InputError
from veilset.core.files import sha256_of
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Records
from veilset.data.matching import in_class_order
from veilset.data.subgroups import Subgroups
from veilset.evaluate.similarity.features import extractor_named
from veilset.evaluate.similarity.likeness import likeness
from veilset.evaluate.utility import reference_scores
from veilset.evaluate.utility.controls import control_scores
from veilset.evaluate.utility.paid import paid_accuracy
from veilset.evaluate.utility.students import require_same_kind
from veilset.evaluate.utility.subgroups import scores_by
from veilset.models import build_network
from veilset.privacy.account import Account
from veilset.privacy.vault import Unit, Vault
from veilset.release import layout
from veilset.release.format import Release, load_release
from veilset.release.students import AUTO, student_name, student_recipe
from veilset.training.classifier import train_classifier
from veilset.training.settings import TrainingConfig

FORMAT = "veilset-evaluation/2"
SCRATCH = "scratch"
FROM_SCRATCH = ("convnet", "resnet18@16", "wrn@1")
"""Networks of other kinds than a teacher on fixed features; the mean over them is what a release is worth."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What to measure. Everything but `students` is left out unless asked for; "auto" is what the release asks for."""

    students: tuple[str, ...] = (AUTO,)
    seeds: int = 1
    first_seed: int = 0
    epochs: int | None = None
    device: str = "cpu"
    wants_references: bool = False
    wants_controls: bool = False
    unit: Unit = "record"
    extractor: str = "auto"

    def __post_init__(self) -> None:
        if not self.students or len(set(self.students)) < len(self.students):
            raise InputError(f"Expected one or more different students, got {', '.join(self.students) or 'none'}.")
        if self.seeds < 1:
            raise InputError(f"Expected at least 1 seed, got {self.seeds}.")

    def names_for(self, release: Release) -> list[str]:
        """The students' networks, each once."""
        named = [one for name in self.students for one in (FROM_SCRATCH if name == SCRATCH else (name,))]
        return list(dict.fromkeys(student_name(release.certificate, name) for name in named))

    def run_of(self, student: str, release: Release, progress: Progress) -> reference_scores.Run:
        """How one student of the release is trained."""
        return reference_scores.Run(
            student=student,
            seeds=self.seeds,
            first_seed=self.first_seed,
            config=student_recipe(release.certificate, TrainingConfig(epochs=self.epochs or "auto")),
            device=self.device,
            progress=progress,
        )


def evaluate(
    path: str | Path,
    wanted: Evaluation | None = None,
    *,
    test: Records,
    train: Records | None = None,
    public: Records | None = None,
    by: Sequence[Subgroups] = (),
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Measure the release at `path` on real `test` images. The result is for the custodian, not for release.

    Args:
        path: the release.
        wanted: what to measure; None is one student, as the release asks for it.
        test: real records that the release was not made from.
        train: the private records that it was made from: for fidelity, likeness and the ceiling.
        public: public images to compare with.
        by: columns of the test set, each of whose values gets scores of its own.
        progress: is told work, never scores.

    >>> import veilset as vs
    >>> release = vs.Method("merf", epsilon=1.0, preset="smoke", samples=60).fit("builtin:digits:train")
    >>> path = release.save("release")
    >>> test = vs.open_images("builtin:digits:test")
    >>> found = vs.evaluate("release", vs.Evaluation(students=("lenet",), epochs=1), test=test)
    >>> found["test_images"], 0 <= found["accuracy"] <= 1
    (359, True)
    """
    path, wanted = Path(path), wanted or Evaluation()
    release = load_release(path)
    classes, names = release.certificate.facts.classes, release.certificate.facts.class_names
    test = in_class_order(test, names, "the test images")
    train = None if train is None else in_class_order(train, names, "the private images")
    for other in (test, train):
        if other is not None:
            require_same_kind(release.images, release.labels, release.soft_labels, classes, other)
    height, width, channels = release.certificate.facts.shape
    extractor = extractor_named(wanted.extractor, channels, max(height, width))
    networks = wanted.names_for(release)
    students = []
    for name in networks:
        run = wanted.run_of(name, release, progress)
        result = reference_scores.students(release.images, release.labels, release.soft_labels, classes, test, run)
        seen = [one.probabilities for one in result.scores if one.probabilities is not None]
        students.append(result.to_json() | ({"by": scores_by(by, test.labels, seen)} if by else {}))
    marks: list[dict[str, Any]] = []
    skipped: list[dict[str, str]] = []
    if wanted.wants_references:
        run = wanted.run_of(networks[0], release, progress)
        marks, skipped = _reference_scores(release, test, train, public, wanted.unit, run)
    controls: list[dict[str, Any]] = []
    if wanted.wants_controls:
        teacher = _teacher_of(release, train, wanted.unit, wanted.run_of(networks[0], release, progress))
        for name in networks:
            controls += control_scores(release, teacher, test, wanted.run_of(name, release, progress))
    # Findings make no classes to compare images within, so all are one.
    one_each = np.zeros(len(release), np.int64) if release.labels.ndim == 2 else release.labels
    scores, pictures = likeness(release.images, one_each, extractor, private=train, public=public, progress=progress)
    # The first student's keys stand at the top, where scripts look for them.
    measured: dict[str, Any] = students[0] | {
        "format": FORMAT,
        "release": identity(path, release),
        "students": students,
        "mean_accuracy": statistics.fmean(one["accuracy"] for one in students),
        "controls": controls,
        "reference_scores": marks,
        "reference_scores_skipped": skipped,
        "extractor": extractor.name,
        "fidelity": [score.to_json() | {"extractor": extractor.name} for score in scores],
        "pictures": pictures,
        "not_for_release": True,
    }
    return measured


def pay_for_accuracy(
    path: Path,
    wanted: Evaluation,
    *,
    test: Records,
    epsilon: float,
    delta: float | None,
    account: Account | None,
    workspace: Path,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """The accuracy of one student of the release, with noise, as an evaluation that may be published."""
    release = load_release(path)
    facts = release.certificate.facts
    test = in_class_order(test, facts.class_names, "the test images")
    require_same_kind(release.images, release.labels, release.soft_labels, facts.classes, test)
    if facts.findings:
        raise InputError("A paid accuracy is that of one class for each image, and the release has findings.")
    if len(wanted.students) > 1 or wanted.seeds > 1:
        raise InputError("A paid accuracy is that of one student with one seed. Leave --seeds out and name one.")
    (name,) = wanted.names_for(release)
    network = build_network(name, shape=facts.shape, classes=facts.classes, seed=wanted.first_seed)
    train_classifier(
        network,
        release.images,
        release.labels,
        release.soft_labels,
        config=student_recipe(release.certificate, TrainingConfig(epochs=wanted.epochs or "auto")),
        seed=wanted.first_seed,
        device=wanted.device,
        progress=progress,
    )
    paid = paid_accuracy(
        network.cpu(),
        Vault(test, unit=wanted.unit),
        epsilon=epsilon,
        delta=delta,
        account=account,
        workspace=workspace,
        student=name,
    )
    return {
        "format": FORMAT,
        "release": identity(path, release),
        "paid": paid.to_json(),
        "not_for_release": False,
    }


def identity(path: Path, release: Release) -> dict[str, Any]:
    """What tells which release was measured."""
    return {"certificate_sha256": sha256_of(path / layout.CERTIFICATE), "method": release.certificate.method}


def _teacher_of(release: Release, train: Records | None, unit: Unit, run: reference_scores.Run) -> nn.Module | None:
    """The teacher of the release, or one like it from the private images at the same epsilon, where there are any."""
    teacher = reference_scores.released_classifier(release, "teacher")
    if teacher is None and train is not None and release.certificate.epsilon is not None:
        teacher = reference_scores.private_teacher(train, release, unit, run)
    return teacher


def _reference_scores(
    release: Release,
    test: Records,
    train: Records | None,
    public: Records | None,
    unit: Unit,
    run: reference_scores.Run,
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """The reference scores that can be had, and why the others cannot."""
    classes = release.certificate.facts.classes
    marks: list[dict[str, Any]] = []
    skipped = []
    teacher, source = _teacher_of(release, train, unit, run), "from the release"
    if teacher is not None and "teacher" not in release.models:
        source = "trained for this comparison at the same epsilon; it was not paid for"
    reason = "the release holds no teacher, and none can be trained without --private and a guarantee"
    if teacher is None:
        skipped.append({"name": "teacher", "reason": reason})
    else:
        marks.append(reference_scores.finished_score("teacher", teacher, test, classes) | {"source": source})
    student = reference_scores.released_classifier(release, "student")
    if student is not None:
        marks.append(
            reference_scores.finished_score("student", student, test, classes) | {"source": "from the release"}
        )
    if teacher is None or public is None:
        skipped.append({"name": "public", "reason": "no --public was given" if public is None else reason})
    else:
        marks.append(reference_scores.public_score(teacher, public, test, classes, run) | {"source": source})
    if train is None:
        skipped.append({"name": "ceiling", "reason": "no --private was given"})
    else:
        marks.append(
            reference_scores.ceiling_score(train, test, classes, run) | {"source": "the private training images"}
        )
    return marks, skipped
