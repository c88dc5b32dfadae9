"""DP-MERF from end to end: a release of MNIST and of Fashion-MNIST, and what students of it reach on the test set.

    PYTHONPATH=src python benchmarks/merf.py [--data mnist] [--epsilon 1] [--seed 0] [--preset default] [--validate]
                                             [--students convnet resnet18@16 wrn@1]

With --validate students are scored on training images that the method did not see; the test set is not read. Settings
were chosen that way. Seconds are by the clock and of the processor: on a shared machine only the second number means
much, and on two quiet cores the clock shows a little more than half of it.
"""

import argparse

from releases import PICTURES, REPOSITORY, Line, load, measure_all, options, student_scores, timed_release
from veilset.evaluate.pictures import write_grid
from veilset.pipeline.evaluate import FROM_SCRATCH

RESULTS = REPOSITORY / "benchmarks" / "results" / "merf.jsonl"


def measure(name: str, epsilon: float, seed: int, asked: argparse.Namespace) -> Line:
    """One release and its students."""
    private, scored_on = load(name, asked.validate)
    release, made = timed_release("merf", private, epsilon, seed, asked)
    if seed == 0 and epsilon == 1 and not asked.validate:
        write_grid(REPOSITORY / "docs" / "images" / f"merf-{PICTURES[name]}.png", release.images, release.labels)
    found = student_scores(release, scored_on, asked.students, seed)
    alone = found["students"].get("convnet")  # a share, as in older lines
    return {"benchmark": "merf", "data": name, "accuracy": alone and round(alone / 100, 4), **made, **found}


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--students", nargs="+", default=list(FROM_SCRATCH))
    measure_all(measure, parser.parse_args(), RESULTS)
