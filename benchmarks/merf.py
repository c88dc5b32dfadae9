"""DP-MERF from end to end: a release of MNIST and of Fashion-MNIST, and what a student of it reaches on the test set.

    PYTHONPATH=src python benchmarks/merf.py [--data mnist] [--epsilon 1] [--seed 0] [--preset default] [--validate]

With --validate the student is scored on training images that the method did not see; the test set is not read. Settings
were chosen that way. Seconds are by the clock and of the processor: on a shared machine only the second number means
much, and on two quiet cores the clock shows a little more than half of it.
"""

import argparse

from releases import PICTURES, REPOSITORY, Line, load, measure_all, options, timed_release
from veilset.evaluate.pictures import write_grid
from veilset.evaluate.utility.students import evaluate_utility

RESULTS = REPOSITORY / "benchmarks" / "results" / "merf.jsonl"


def measure(name: str, epsilon: float, seed: int, asked: argparse.Namespace) -> Line:
    """One release and one student."""
    private, scored_on = load(name, asked.validate)
    release, made = timed_release("merf", private, epsilon, seed, asked)
    if seed == 0 and epsilon == 1 and not asked.validate:
        write_grid(REPOSITORY / "docs" / "images" / f"merf-{PICTURES[name]}.png", release.images, release.labels)
    result = evaluate_utility(
        release.images, release.labels, release.soft_labels, 10, scored_on, seeds=1, first_seed=seed
    )
    return {
        "benchmark": "merf",
        "data": name,
        "accuracy": round(result.accuracy, 4),
        **made,
        "student_seconds": round(result.seconds),
    }


if __name__ == "__main__":
    measure_all(measure, options(__doc__).parse_args(), RESULTS)
