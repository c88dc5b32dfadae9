"""One cell of a comparison in a process of its own, which reads it from standard input.

A process for each cell makes the peak memory that of the cell, and a crash its own affair.
"""

import json
import os
import platform
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from veilset.core.errors import VeilsetError, flags_spoken
from veilset.data.opening import open_images
from veilset.evaluate.utility.students import evaluate_utility
from veilset.methods import METHODS
from veilset.pipeline.compare.suite import Cell, cell_from, located
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.vault import Vault
from veilset.release.students import student_recipe
from veilset.training.settings import TrainingConfig


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    """Make the release, train the student, score it on the test set, last epoch.

    Privacy: reads the test set without noise; the result compares methods on data that is public anyway.
    """
    import torch

    dataset = cell.dataset
    options: dict[str, Any] = {
        "size": dataset.size,
        "channels": dataset.channels,
        "labels": dataset.labels,
        "reading": dataset.read_as(),
    }
    private = open_images(
        located(dataset.train, folder), groups=dataset.groups, limit=dataset.limit, seed=cell.seed, **options
    )
    vault = Vault(private, unit="record" if private.groups is None else "group")
    public = None
    if dataset.public is not None and cell.entrant.public:
        height, _, channels = vault.facts.shape
        public = vault.check_public(
            open_images(located(dataset.public, folder), size=height, channels=channels, needs_classes=False)
        )
    job = Job(
        method=cell.entrant.method,
        epsilon=cell.epsilon,
        delta=cell.delta,
        preset=cell.entrant.preset,
        settings=cell.entrant.settings,
        samples=cell.samples,
        seed=cell.seed,
        insecure_seed=cell.seed if cell.seeded_noise else None,
    )
    clock, processor = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as place:
        release = run(vault, job, workspace=Path(place) / "run", public=public)
    seconds, cpu_seconds = time.perf_counter() - clock, time.process_time() - processor
    peak_mb = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    result = evaluate_utility(
        release.images,
        release.labels,
        release.soft_labels,
        vault.facts.classes,
        open_images(located(dataset.test, folder), **options),
        student=cell.student,
        seeds=1,
        first_seed=cell.seed,
        config=student_recipe(release.certificate, TrainingConfig(epochs=cell.epochs or "auto")),
    ).to_json()
    return {
        "accuracy": result["accuracy"],
        "accuracy_interval": result["accuracy_interval"],
        "balanced_accuracy": result["balanced_accuracy"],
        "auc": result["auc"],
        "calibration_error": result.get("calibration_error"),  # of classes; findings have none
        "guarantee": release.certificate.guarantee,
        "spent_epsilon": release.certificate.epsilon,
        "delta": release.certificate.delta,
        "unit": release.certificate.unit,
        "needs_public": METHODS.get(cell.entrant.method).needs_public,
        "given_public": public is not None,  # whether the method makes use of them is its own matter
        "samples": len(release),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "peak_mb": peak_mb,
        "student_seconds": result["seconds"],
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "machine": f"{platform.machine()} {platform.processor() or platform.system()}".strip(),
        "load": round(os.getloadavg()[0], 1),
    }


@flags_spoken()
def main() -> int:
    """Read a cell, answer with one JSON object on standard output, or with a line about what failed on stderr."""
    asked = json.loads(sys.stdin.read())
    try:
        result = measure(cell_from(asked["cell"]), Path(asked["folder"]))
    except VeilsetError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
