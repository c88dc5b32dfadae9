"""What the benchmarks of whole methods share: real data, options, and a release with what it took."""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import veilset.training  # noqa: F401  (thread settings, before torch)

from machine import append  # isort: skip

from veilset.data.images import ImageSet
from veilset.data.selection import kept, key_of
from veilset.evaluate.utility.students import evaluate_utility
from veilset.pipeline.evaluate import FROM_SCRATCH
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.vault import Vault
from veilset.release.format import Release
from veilset.training.settings import TrainingConfig

REPOSITORY = Path(__file__).parent.parent
DATA = Path(os.environ.get("VEILSET_DATA") or REPOSITORY.parent / "shared" / "data")
# What may be shown, and its short name; CelebA's licence lets nobody show its faces.
PICTURES = {"mnist": "mnist", "fashion_mnist": "fashion"}
DELTA = 1e-5

Line = dict[str, Any]
Measure = Callable[[str, float, int, argparse.Namespace], Line]


def load(name: str, validate: bool) -> tuple[ImageSet, ImageSet]:
    """The private records and those to score on: the test images or, to choose settings, a sixth of train."""
    pack = np.load(DATA / f"{name}.npz")

    def part(side: str) -> ImageSet:
        images = pack[f"{side}_images"]
        return ImageSet(images.reshape(*images.shape[:3], -1), pack[f"{side}_labels"].astype(np.int64))

    train = part("train")
    if not validate:
        return train, part("test")
    outside = kept(train, 1 / 6, key_of(0, "validation"))
    return train.subset(np.setdiff1d(np.arange(len(train)), outside)), train.subset(outside)


def options(description: str | None) -> argparse.ArgumentParser:
    """The options that all of them have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=list(PICTURES))
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 10.0])
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
    parser.add_argument("--preset", default="default")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--validate", action="store_true", help="score on the last sixth of the training images")
    parser.add_argument("--out", type=Path)
    return parser


def measure_all(measure: Measure, asked: argparse.Namespace, out: Path) -> None:
    """One line for each dataset, epsilon and seed that the options name."""
    for seed in asked.seed:
        for epsilon in asked.epsilon:
            for name in asked.data:
                append(measure(name, epsilon, seed, asked), asked.out or out)


def timed_release(
    method: str, private: ImageSet, epsilon: float, seed: int, asked: argparse.Namespace, *, as_published: bool = False
) -> tuple[Release, Line]:
    """A release, and the part of its line that says how it was made and what it took."""
    settings = dict(pair.split("=", 1) for pair in asked.set)
    # A seeded noise makes the measurement repeatable; a release made for others must not be.
    job = Job(
        method=method,
        epsilon=epsilon,
        delta=DELTA,
        preset=asked.preset,
        settings=settings,
        samples=asked.samples,
        seed=seed,
        insecure_seed=seed,
        as_published=as_published,
    )
    clock, processor = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        release = run(Vault(private), job, workspace=Path(folder) / "run")
    return release, {
        "scored_on": "last sixth of train" if asked.validate else "test",
        "epsilon": None if as_published else epsilon,
        "delta": None if as_published else DELTA,
        "seed": seed,
        "preset": asked.preset,
        "settings": settings,
        "samples": len(release.images),
        "seconds": round(time.perf_counter() - clock),
        "cpu_seconds": round(time.process_time() - processor),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def student_scores(
    release: Release, test: ImageSet, students: Sequence[str], seed: int, config: TrainingConfig | None = None
) -> Line:
    """What each student reaches, in per cent, and the mean of the three from scratch where all of them are there."""
    scores: dict[str, float] = {}
    for student in students:
        found = evaluate_utility(
            release.images, release.labels, release.soft_labels, release.certificate.facts.classes, test,
            student=student, seeds=1, first_seed=seed, config=config,
        )  # fmt: skip
        scores[student] = round(100 * found.accuracy, 2)
        print(f"{student}: {scores[student]}", flush=True)
    mean = np.mean([scores[name] for name in FROM_SCRATCH]) if set(FROM_SCRATCH) <= set(scores) else None
    return {"students": scores, "mean_from_scratch": None if mean is None else round(float(mean), 2)}
