"""dpgan and dpaf from end to end: a student that saw nothing but the release, on real test images.

    PYTHONPATH=src python benchmarks/dpgan.py [--method dpgan] [--data mnist] [--epsilon 1] [--seed 0] [--validate]

With --validate the method sees the first five sixths of the training images and the student is scored on the last
sixth; the test set is not read. Settings were chosen that way.
"""

import argparse

import numpy as np

from releases import PICTURES, REPOSITORY, Line, load, measure_all, options, timed_release
from veilset.evaluate.pictures import write_grid
from veilset.evaluate.utility.students import evaluate_utility
from veilset.training.settings import TrainingConfig


def measure(name: str, epsilon: float, seed: int, asked: argparse.Namespace) -> Line:
    """One release and its student."""
    private, scored_on = load(name, asked.validate)
    release, made = timed_release(asked.method, private, epsilon, seed, asked)
    if name in PICTURES and seed == 0 and not asked.validate:
        picture = f"{asked.method}-{PICTURES[name]}-eps{epsilon:g}.png"
        write_grid(REPOSITORY / "docs" / "images" / picture, release.images, release.labels)
    classes = len(private.class_names)
    wanted = np.arange(len(release.labels)) % classes
    student = evaluate_utility(
        release.images,
        release.labels,
        release.soft_labels,
        classes,
        scored_on,
        seeds=1,
        first_seed=seed,
        config=TrainingConfig(epochs=asked.student_epochs or "auto"),
    )
    return {
        "benchmark": asked.method,
        "data": name,
        "accuracy": round(student.accuracy, 4),
        "labels_as_asked": round(float((wanted == release.labels).mean()), 4),
        "student_epochs": asked.student_epochs or "the recipe's",
        "warnings": [text for text in release.certificate.warnings if "account" not in text],
        **made,
    }


def main() -> None:
    """Measure what the options name and append one line each."""
    parser = options(__doc__)
    parser.add_argument("--method", choices=["dpgan", "dpaf"], default="dpgan")
    parser.add_argument("--student-epochs", type=int, help="fewer than the recipe's, where a machine is busy")
    asked = parser.parse_args()
    measure_all(measure, asked, REPOSITORY / "benchmarks" / "results" / f"{asked.method}.jsonl")


if __name__ == "__main__":
    main()
