"""Network teachers with independent and with correlated noise, on a held-out sixth of the training images.

    PYTHONPATH=src python benchmarks/correlated.py [--data mnist] [--epsilon 10] [--seeds 0 1] [--bands 1 auto]
        [--learning-rate auto] [--batch auto] [--steps auto]

The held-out images play the test set, which is not read. Runs of one seed share their first weights and the held-out
images; the privacy noise comes from the operating system. Every run appends one line to
benchmarks/results/correlated.jsonl.
"""

import argparse
import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

import veilset.training  # noqa: F401  (thread settings, before torch)

import numpy as np  # isort: skip

from machine import append
from teachers import DELTA, read
from veilset.core.randomness import numpy_generator
from veilset.data.images import ImageSet
from veilset.methods.base import Context
from veilset.privacy.budget import Budget
from veilset.privacy.events import Plan
from veilset.privacy.ledger import Ledger
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session
from veilset.privacy.vault import Vault
from veilset.teachers.config import TeacherSettings
from veilset.teachers.fitting import train_teacher
from veilset.teachers.planning import plan_teacher
from veilset.training.classifier import predict
from veilset.training.threads import set_thread_count

RESULTS = Path(__file__).parent / "results" / "correlated.jsonl"
HELD_OUT = 6  # one in so many


def halves(data: str, seed: int) -> tuple[ImageSet, ImageSet]:
    """What is trained on, and the held-out images."""
    records = read(data, "train")
    whole = ImageSet(records.read(np.arange(len(records.labels))), records.labels, records.class_names)
    order = numpy_generator(seed, "correlated/held out").permutation(len(whole))
    cut = len(whole) // HELD_OUT
    return whole.subset(np.sort(order[cut:])), whole.subset(np.sort(order[:cut]))


def run(data: str, epsilon: float, seed: int, settings: TeacherSettings) -> dict[str, Any]:
    """Plan, train and measure one teacher."""
    trained_on, held_out = halves(data, seed)
    vault = Vault(trained_on, unit="record")
    budget = Budget(epsilon, DELTA)
    begin = time.perf_counter()
    planned = plan_teacher(vault.facts, budget, settings)
    planning = time.perf_counter() - begin
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "ledger.jsonl", {"run": f"benchmark/{seed}"})
        session = Session(vault, Plan(budget=budget, events=(planned.event,)), ledger, NoiseSource())
        teacher = train_teacher(session, planned, None, Context(seed=seed))
        session.finish()
        ledger.close()
    seconds = time.perf_counter() - begin
    right = predict(teacher.network, held_out.images).argmax(axis=1) == held_out.labels
    return {
        "benchmark": "correlated noise",
        "data": data,
        "measured_on": "a held-out sixth of the training images",
        "epsilon": epsilon,
        "delta": DELTA,
        "units": vault.facts.units,
        "seed": seed,
        "bands": planned.event.bands,
        "steps": planned.event.steps,
        "network": planned.recipe.network,
        "learning_rate": planned.recipe.learning_rate,
        "accuracy": round(100 * float(right.mean()), 2),
        "planning_seconds": round(planning, 1),
        "seconds": round(seconds, 1),
        "event": planned.event.to_json(),
    }


def number(text: str) -> int | str:
    """A whole number or auto."""
    return text if text == "auto" else int(text)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--epsilon", nargs="+", type=float, default=[10.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--bands", nargs="+", type=number, default=[1, "auto"])
    parser.add_argument("--learning-rate", nargs="+", default=["auto"])
    parser.add_argument("--batch", type=number, default="auto")
    parser.add_argument("--steps", type=number, default="auto")
    asked = parser.parse_args()
    set_thread_count()
    kinds = itertools.product(asked.seeds, asked.epsilon, asked.learning_rate, asked.bands)
    for seed, epsilon, rate, bands in kinds:
        settings = TeacherSettings(
            kind="network",
            bands=bands,
            batch=asked.batch,
            steps=asked.steps,
            learning_rate=rate if rate == "auto" else float(rate),
        )
        append(run(asked.data, epsilon, seed, settings), RESULTS)


if __name__ == "__main__":
    main()
