"""pldk from end to end: the released student, and one that learns from the released images alone, on real test images.

    PYTHONPATH=src python benchmarks/pldk.py [--data mnist] [--epsilon 10] [--seed 0] [--as-published] [--validate]

With --validate the method sees the first five sixths of the training images and the students are scored on the last
sixth; the test set is not read. Settings were chosen on that split.
"""

import argparse

import veilset.training  # noqa: F401  (thread settings, before torch)

from releases import PICTURES, REPOSITORY, Line, load, measure_all, options, timed_release  # isort: skip

from veilset.evaluate.pictures import write_grid
from veilset.evaluate.utility.students import evaluate_utility
from veilset.release.students import student_recipe
from veilset.training.classifier import predict
from veilset.training.settings import TrainingConfig

PASSES = 1000
RESULTS = REPOSITORY / "benchmarks" / "results" / "pldk.jsonl"


def measure(name: str, epsilon: float, seed: int, asked: argparse.Namespace) -> Line:
    """One release and its students."""
    private, scored_on = load(name, asked.validate)
    release, made = timed_release("pldk", private, epsilon, seed, asked, as_published=asked.as_published)
    if name in PICTURES and asked.picture and not asked.validate:
        picture = REPOSITORY / "docs" / "images" / f"pldk-{PICTURES[name]}-{asked.picture}.png"
        write_grid(picture, release.images, release.labels)
    student = release.model("student")
    # As the release recommends: its images and their labels, in as many passes as condensation papers make.
    alone = evaluate_utility(
        release.images, release.labels, release.soft_labels, len(private.class_names), scored_on,
        seeds=1, first_seed=seed, config=student_recipe(release.certificate, TrainingConfig(epochs=PASSES)),
    )  # fmt: skip
    return {
        "benchmark": "pldk",
        "data": name,
        "as_published": asked.as_published,
        "accuracy": round(float((predict(student, scored_on.images).argmax(axis=1) == scored_on.labels).mean()), 4),
        "accuracy_of_images_alone": round(alone.accuracy, 4),
        "passes": PASSES,
        **made,
    }


def main() -> None:
    """Measure what the options name and append one line each."""
    parser = options(__doc__)
    # The setting images_per_class says how many images there are.
    parser.set_defaults(data=["mnist"], epsilon=[10.0], samples=None)
    parser.add_argument("--as-published", action="store_true", help="experts and teacher without noise: no guarantee")
    parser.add_argument("--picture", metavar="NAME", help="draw the images to docs/images/pldk-DATA-NAME.png")
    measure_all(measure, parser.parse_args(), RESULTS)


if __name__ == "__main__":
    main()
