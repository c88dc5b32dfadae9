"""What a release's students are measured against: the DP teacher, public images that it labelled, and the ceiling.

The teacher is taken from the release where it holds one. Otherwise it can be trained from the private training data in
a vault of its own at the release's epsilon: that is a second spending, so such a number stays inside the house.
"""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Images, Labels, Records, Rows
from veilset.data import pixels
from veilset.data.images import ImageSet
from veilset.evaluate.utility.findings import THRESHOLD
from veilset.evaluate.utility.students import UtilityResult, classify, evaluate_utility, score
from veilset.models.descriptions import recognised
from veilset.privacy.account import Account
from veilset.privacy.budget import Budget
from veilset.privacy.events import Plan
from veilset.privacy.opening import opened
from veilset.privacy.vault import Unit, Vault
from veilset.release.format import Release
from veilset.teachers.fitting import train_teacher
from veilset.teachers.planning import plan_teacher
from veilset.training.classifier import SoftLabels
from veilset.training.settings import TrainingConfig

_AT_ONCE = 2000
TITLES = {
    "teacher": "The DP classifier itself",
    "public": "Public images, labelled by it",
    "student": "The network inside the release",
    "ceiling": "Trained on the real images, without privacy",
    "noise": "The same student on noise that the teacher labelled",
    "shuffled": "The same student on the released images with shuffled labels",
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """How students of reference scores are trained: as those of the release."""

    student: str = "convnet"
    seeds: int = 1
    first_seed: int = 0
    config: TrainingConfig | None = None
    device: str = "cpu"
    progress: Progress = SILENT

    # What a teacher's training asks of its context.
    @property
    def seed(self) -> int:
        """Of all public randomness."""
        return self.first_seed


def released_classifier(release: Release, model: str) -> nn.Module | None:
    """The `teacher` or the `student` that the release publishes, where it holds one that we can rebuild."""
    if model not in release.models:
        return None
    found = recognised(release.models[model][1])
    if found["network"] == "classifier" and ":" in str(found.get("name")):
        return None  # the user's own code does not travel with a release
    network: nn.Module = release.model(model)
    return network


def private_teacher(train: Records, release: Release, unit: Unit, run: Run) -> nn.Module:
    """A DP teacher of the private training records at the release's epsilon and delta.

    Privacy: unit as given; relation add/remove-one; sensitivity and event those of the teacher's recipe; assumes that
    its results stay with the custodian, because nobody's account pays for this second spending.
    """
    certificate = release.certificate
    if certificate.epsilon is None or certificate.delta is None:
        raise InputError("The release has no guarantee, so there is no teacher at the same epsilon to compare with.")
    vault = Vault(train, unit=unit)
    budget = Budget(certificate.epsilon, certificate.delta)
    teacher = plan_teacher(vault.facts, budget)
    plan = Plan(budget=budget, events=(teacher.event,))
    header = {"method": "reference teacher", "as_published": False, "facts": vault.facts.to_json()}
    with tempfile.TemporaryDirectory() as folder:
        place, unpaid = Path(folder), Account(Path(folder) / "account.sqlite")
        with opened(vault, plan, header, workspace=place, account=unpaid, progress=run.progress) as opening:
            return train_teacher(opening.session, teacher, None, run).network


def finished_score(name: str, network: nn.Module, test: Records, classes: int) -> dict[str, Any]:
    """What a finished network, the `teacher` or the `student` of a release, reaches on the test set."""
    began = time.perf_counter()
    result = UtilityResult(
        student=name,
        scores=(score(network, test, classes, began=began),),
        class_names=tuple(test.class_names),
        train_images=0,
        test_images=len(test.labels),
        seconds=time.perf_counter() - began,
    )
    return entry(name, result)


def public_score(network: nn.Module, public: Records, test: Records, classes: int, run: Run) -> dict[str, Any]:
    """What students of public images reach when the teacher labels them: the release has to beat this."""
    images = in_shape(public, test.shape)
    labels, soft = labelled_by(network, images, classes, run, findings=test.labels.ndim == 2)
    return entry("public", students(images, labels, soft, classes, test, run))


def labelled_by(
    network: nn.Module, images: Images, classes: int, run: Run, *, findings: bool
) -> tuple[Labels, SoftLabels]:
    """A teacher's labels of images, hard and as soft as the release's."""
    blank = np.zeros((len(images), classes) if findings else len(images), np.int64)
    sure = classify(network, ImageSet(images, blank, may_lack_classes=True))
    if findings:
        return (sure >= THRESHOLD).astype(np.int64), sure.astype(np.float32)
    soft = softened(sure, run)
    return soft.argmax(axis=1), soft


def softened(sure: NDArray[np.floating], run: Run) -> SoftLabels:
    """A teacher's probabilities as soft as the release's labels, so that the images alone make the difference."""
    return (sure ** (1 / (run.config or TrainingConfig()).label_temperature)).astype(np.float32)


def ceiling_score(train: Records, test: Records, classes: int, run: Run) -> dict[str, Any]:
    """What students of the real training images reach: no release can be expected to pass it.

    Privacy: reads the private training records without noise; its result is for the custodian alone.
    """
    images = train.read(np.arange(len(train.labels)))
    return entry("ceiling", students(images, train.labels, None, classes, test, run))


def in_shape(records: Records, shape: tuple[int, int, int], rows: Rows | None = None) -> Images:
    """The images of these rows, or of all, brought to `shape`."""
    height, width, channels = shape
    rows = np.arange(len(records.labels)) if rows is None else rows
    parts = [
        pixels.resize(pixels.to_channels(records.read(rows[start : start + _AT_ONCE]), channels), height, width)
        for start in range(0, len(rows), _AT_ONCE)
    ]
    return np.concatenate(parts)


def students(
    images: Images, labels: Labels, soft: SoftLabels | None, classes: int, test: Records, run: Run
) -> UtilityResult:
    """What students of these images reach on the test set."""
    return evaluate_utility(
        images,
        labels,
        soft,
        classes,
        test,
        student=run.student,
        seeds=run.seeds,
        first_seed=run.first_seed,
        config=run.config,
        device=run.device,
        progress=run.progress,
    )


def entry(name: str, result: UtilityResult) -> dict[str, Any]:
    """A score with its name and title, as JSON-ready data."""
    return {"name": name, "title": TITLES[name], "needs_private_data": True, **result.to_json()}
