"""The usual measure: a release of the method, verified, and what students that saw nothing else reach."""

import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import veilset.training  # noqa: F401  (thread settings, before torch)

import numpy as np  # isort: skip
from papers.cells import Cell  # isort: skip
from papers.data import is_grouped, private_and_scored, public_for  # isort: skip

from veilset.data.images import ImageSet
from veilset.evaluate.utility.students import evaluate_utility
from veilset.pipeline.job import Job, draw_plan
from veilset.pipeline.run import run
from veilset.privacy.vault import Vault
from veilset.release.format import Release, load_release
from veilset.release.students import student_recipe
from veilset.release.verify import verify_release
from veilset.training.classifier import predict
from veilset.training.settings import TrainingConfig

DELTA = 1e-5
RELEASED = "released"


def made(cell: Cell, seed: int, *, validate: bool) -> tuple[Release, Vault, Any, dict[str, Any]]:
    """A verified release of a cell, its vault, what to score on, and the fields that say how it was made.

    The privacy noise comes from the operating system, so two runs of one seed differ by it.
    """
    private, scored = private_and_scored(cell.private, cell.units, validate=validate)
    vault = Vault(private, unit="group" if is_grouped(cell.private) else "record")
    job = Job(
        method=cell.method,
        epsilon=cell.epsilon or 10.0,
        delta=DELTA,
        preset=cell.preset,
        settings=dict(cell.settings),
        samples=cell.samples,
        seed=seed,
        as_published=cell.as_published,
    )
    public = None
    if cell.public is not None:
        scale = draw_plan(job, vault.facts).public_scale
        public = vault.check_public(public_for(cell.public, private, scale))
    clock, processor = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run(vault, job, workspace=Path(folder) / "run", public=public).save(Path(folder) / "release")
        seconds, cpu_seconds = time.perf_counter() - clock, time.process_time() - processor
        found, release = verify_release(Path(folder) / "release"), load_release(Path(folder) / "release")
    if not found.ok:
        raise SystemExit(f"The release does not verify: {found.problems}")
    return release, vault, scored, {
        "n": vault.facts.units,
        "unit": vault.facts.unit,
        "shape": list(private.shape),
        "guarantee": release.certificate.guarantee,
        "certified_epsilon": found.epsilon,
        "delta": None if cell.as_published else DELTA,
        "samples": len(release),
        "warnings": list(release.certificate.warnings),
        "seconds": round(seconds),
        "cpu_seconds": round(cpu_seconds),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }  # fmt: skip


def measure(cell: Cell, seed: int, *, validate: bool) -> dict[str, Any]:
    """Accuracy and balanced accuracy of each student; `value` is the first one's.

    The student "released" is the one that the release itself holds; the others see its images alone.
    """
    release, vault, scored, about = made(cell, seed, validate=validate)
    config = student_recipe(release.certificate, TrainingConfig(**dict(cell.recipe)))
    scores: dict[str, dict[str, float]] = {}
    for student in cell.students:
        if student == RELEASED:
            scores[student] = _of_released(release, scored)
            continue
        found = evaluate_utility(
            release.images, release.labels, release.soft_labels, vault.facts.classes, scored,
            student=student, seeds=1, first_seed=seed, config=config,
        )  # fmt: skip
        scores[student] = {
            "accuracy": round(100 * found.accuracy, 2),
            "balanced_accuracy": round(100 * found.balanced_accuracy, 2),
            "seconds": round(found.seconds),
        }
    return {"students": scores, "metric": cell.metric, "value": scores[cell.students[0]][cell.metric], **about}


def _of_released(release: Release, scored: ImageSet) -> dict[str, float]:
    right = predict(release.model("student"), scored.images).argmax(axis=1) == scored.labels
    recalls = [float(right[scored.labels == label].mean()) for label in np.unique(scored.labels)]
    return {
        "accuracy": round(100 * float(right.mean()), 2),
        "balanced_accuracy": round(100 * float(np.mean(recalls)), 2),
    }
