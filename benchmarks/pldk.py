"""pldk from end to end: the released student, and one that we train on the released images, on real test images.

    PYTHONPATH=src python benchmarks/pldk.py [--data mnist] [--epsilon 10] [--seed 0] [--as-published] [--validate]

With --validate the method sees the first five sixths of the training images and the students are scored on the last
sixth; the test set is not read. Settings were chosen on that split.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import veilset.training  # noqa: F401  (thread settings, before torch)

from releases import DELTA, PICTURES, REPOSITORY, load  # isort: skip
from machine import append  # isort: skip

from veilset.evaluate.attacks.targets import rebuild_student
from veilset.evaluate.pictures import write_grid
from veilset.evaluate.utility import evaluate_utility
from veilset.pipeline.synthesize import Job, run
from veilset.privacy.vault import Vault
from veilset.training.plain import predict

RESULTS = REPOSITORY / "benchmarks" / "results" / "pldk.jsonl"


def measure(name: str, epsilon: float, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One release and its students."""
    private, scored_on = load(name, arguments.validate)
    settings = dict(pair.split("=", 1) for pair in arguments.set)
    # A seeded noise makes the measurement repeatable; a release made for others must not be.
    job = Job(
        method="pldk",
        epsilon=epsilon,
        delta=DELTA,
        preset=arguments.preset,
        settings=settings,
        seed=seed,
        as_published=arguments.as_published,
        insecure_seed=seed,
    )
    clock, processor = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        release = run(Vault(private), job, workspace=Path(folder) / "run")
    seconds, cpu_seconds = time.perf_counter() - clock, time.process_time() - processor
    if name in PICTURES and arguments.picture and not arguments.validate:
        picture = REPOSITORY / "docs" / "images" / f"pldk-{PICTURES[name]}-{arguments.picture}.png"
        write_grid(picture, release.images, release.labels)
    weights, description = release.models["student"]
    _, student = rebuild_student(description, weights)
    other = evaluate_utility(
        release.images,
        release.labels,
        release.soft_labels,
        len(private.class_names),
        scored_on,
        seeds=1,
        first_seed=seed,
    )
    return {
        "benchmark": "pldk",
        "data": name,
        "scored_on": "last sixth of train" if arguments.validate else "test",
        "as_published": arguments.as_published,
        "epsilon": None if arguments.as_published else epsilon,
        "delta": None if arguments.as_published else DELTA,
        "accuracy": round(float((predict(student, scored_on.images).argmax(axis=1) == scored_on.labels).mean()), 4),
        "accuracy_of_another_student": round(other.accuracy, 4),
        "seed": seed,
        "preset": arguments.preset,
        "settings": settings,
        "images": len(release.images),
        "seconds": round(seconds),
        "cpu_seconds": round(cpu_seconds),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def main() -> None:
    """Measure what the options name and append one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["mnist"])
    parser.add_argument("--epsilon", nargs="+", type=float, default=[10.0])
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
    parser.add_argument("--preset", default="default")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--as-published", action="store_true", help="experts and teacher without noise: no guarantee")
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--picture", metavar="NAME", help="draw the images to docs/images/pldk-DATA-NAME.png")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    for seed in arguments.seed:
        for epsilon in arguments.epsilon:
            for name in arguments.data:
                append(measure(name, epsilon, seed, arguments), arguments.out)


if __name__ == "__main__":
    main()
