"""dpgan and dpaf from end to end: a student that saw nothing but the release, on real test images.

    PYTHONPATH=src python benchmarks/dpgan.py [--method dpgan] [--data mnist] [--epsilon 1] [--seed 0] [--validate]

With --validate the method sees the first five sixths of the training images and the student is scored on the last
sixth; the test set is not read. Settings were chosen that way.
"""

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import veilset.training  # noqa: F401  (thread settings, before torch)

from machine import append  # isort: skip

from veilset.data.images import ImageSet
from veilset.evaluate.pictures import write_grid
from veilset.evaluate.utility import evaluate_utility
from veilset.pipeline.synthesize import Job, run
from veilset.privacy.vault import Vault
from veilset.training.recipe import TrainingConfig

REPOSITORY = Path(__file__).parent.parent
DATA = Path(os.environ.get("VEILSET_DATA") or REPOSITORY.parent / "shared" / "data")
# CelebA's licence lets nobody show its faces.
PICTURES = {"mnist": "mnist", "fashion_mnist": "fashion"}
DELTA = 1e-5


def load(name: str, validate: bool) -> tuple[ImageSet, ImageSet]:
    """The private records and those to score on."""
    pack = np.load(DATA / f"{name}.npz")

    def part(side: str) -> ImageSet:
        images = pack[f"{side}_images"]
        return ImageSet(images.reshape(*images.shape[:3], -1), pack[f"{side}_labels"].astype(np.int64))

    train = part("train")
    if not validate:
        return train, part("test")
    rows, cut = np.arange(len(train)), 5 * len(train) // 6
    return train.subset(rows[:cut]), train.subset(rows[cut:])


def measure(name: str, epsilon: float, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One release and its student."""
    private, scored_on = load(name, arguments.validate)
    settings = dict(pair.split("=", 1) for pair in arguments.set)
    # A seeded noise makes the measurement repeatable; a release made for others must not be.
    job = Job(
        method=arguments.method,
        epsilon=epsilon,
        delta=DELTA,
        preset=arguments.preset,
        settings=settings,
        samples=arguments.samples,
        seed=seed,
        insecure_seed=seed,
    )
    clock, processor = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        release = run(Vault(private), job, workspace=Path(folder) / "run")
    seconds, cpu_seconds = time.perf_counter() - clock, time.process_time() - processor
    if name in PICTURES and seed == 0 and not arguments.validate:
        picture = f"{arguments.method}-{PICTURES[name]}-eps{epsilon:g}.png"
        write_grid(REPOSITORY / "docs" / "images" / picture, release.images, release.labels)
    classes = len(private.class_names)
    asked = np.arange(len(release.labels)) % classes
    student = evaluate_utility(
        release.images,
        release.labels,
        release.soft_labels,
        classes,
        scored_on,
        seeds=1,
        first_seed=seed,
        config=TrainingConfig(epochs=arguments.student_epochs),
    )
    return {
        "benchmark": arguments.method,
        "data": name,
        "scored_on": "last sixth of train" if arguments.validate else "test",
        "accuracy": round(student.accuracy, 4),
        "labels_as_asked": round(float((asked == release.labels).mean()), 4),
        "epsilon": epsilon,
        "delta": DELTA,
        "seed": seed,
        "preset": arguments.preset,
        "settings": settings,
        "samples": len(release.images),
        "student_epochs": arguments.student_epochs or "the recipe's",
        "warnings": [text for text in release.certificate.warnings if "account" not in text],
        "seconds": round(seconds),
        "cpu_seconds": round(cpu_seconds),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def main() -> None:
    """Measure what the options name and append one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=["dpgan", "dpaf"], default="dpgan")
    parser.add_argument("--data", nargs="+", default=["mnist", "fashion_mnist"])
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 10.0])
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
    parser.add_argument("--preset", default="default")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--student-epochs", type=int, help="fewer than the recipe's, where a machine is busy")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    out = arguments.out or REPOSITORY / "benchmarks" / "results" / f"{arguments.method}.jsonl"
    for seed in arguments.seed:
        for epsilon in arguments.epsilon:
            for name in arguments.data:
                append(measure(name, epsilon, seed, arguments), out)


if __name__ == "__main__":
    main()
