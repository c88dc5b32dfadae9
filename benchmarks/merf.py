"""DP-MERF from end to end: a release of MNIST and of Fashion-MNIST, and what a student of it reaches on the test set.

    PYTHONPATH=src python benchmarks/merf.py [--data mnist] [--epsilon 1] [--seed 0] [--preset default] [--validate]

With --validate the method sees the first 50,000 training images and the student is scored on the last 10,000; the test
set is not read. Settings were chosen that way. Seconds are by the clock and of the processor: on a shared machine only
the second number means much, and on two quiet cores the clock shows a little more than half of it.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import veilset.training  # noqa: F401  (thread settings, before torch)

import torch  # isort: skip

from veilset.data.images import ImageSet
from veilset.evaluate.pictures import write_grid
from veilset.evaluate.utility import evaluate_utility
from veilset.pipeline.synthesize import Job, run
from veilset.privacy.vault import Vault

REPOSITORY = Path(__file__).parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results" / "merf.jsonl"
DATA = Path(os.environ.get("VEILSET_DATA") or REPOSITORY.parent / "shared" / "data")
PICTURES = {"mnist": "merf-mnist.png", "fashion_mnist": "merf-fashion.png"}
DELTA = 1e-5
VALIDATION_START = 50_000


def load(name: str, validate: bool) -> tuple[ImageSet, ImageSet]:
    """The private records and those to score on."""
    pack = np.load(DATA / f"{name}.npz")
    parts = []
    for part in ("train",) if validate else ("train", "test"):
        labels = pack[f"{part}_labels"].astype(np.int64)
        parts.append(ImageSet(pack[f"{part}_images"][..., None], labels))
    if not validate:
        return parts[0], parts[1]
    rows = np.arange(len(parts[0]))
    return parts[0].subset(rows[:VALIDATION_START]), parts[0].subset(rows[VALIDATION_START:])


def measure(name: str, epsilon: float, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One release and one student."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    private, scored_on = load(name, arguments.validate)
    settings = dict(pair.split("=", 1) for pair in arguments.set)
    # A seeded noise makes the measurement repeatable; a release made for others must not be.
    job = Job(
        method="merf",
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
    peak_mb = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    if seed == 0 and epsilon == 1 and not arguments.validate:
        write_grid(REPOSITORY / "docs" / "images" / PICTURES[name], release.images, release.labels)
    result = evaluate_utility(
        release.images, release.labels, release.soft_labels, 10, scored_on, seeds=1, first_seed=seed
    )
    return {
        "benchmark": "merf",
        "data": name,
        "scored_on": "last 10,000 of train" if arguments.validate else "test",
        "accuracy": round(result.accuracy, 4),
        "epsilon": epsilon,
        "delta": DELTA,
        "seed": seed,
        "preset": arguments.preset,
        "settings": settings,
        "samples": len(release.images),
        "seconds": round(seconds),
        "cpu_seconds": round(cpu_seconds),
        "peak_mb": peak_mb,
        "student_seconds": round(result.seconds),
        "load": round(os.getloadavg()[0], 1),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "machine": f"{platform.machine()} {platform.processor() or platform.node()}".strip(),
        "commit": commit.stdout.strip() or "uncommitted",
    }


def main() -> None:
    """Measure what the options name and append one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=list(PICTURES), default=list(PICTURES))
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 10.0])
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
    parser.add_argument("--preset", default="default")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    for seed in arguments.seed:
        for epsilon in arguments.epsilon:
            for name in arguments.data:
                line = json.dumps(measure(name, epsilon, seed, arguments))
                print(line, flush=True)
                arguments.out.parent.mkdir(parents=True, exist_ok=True)
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")


if __name__ == "__main__":
    main()
