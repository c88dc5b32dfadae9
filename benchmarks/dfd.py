"""Data-free distillation and PATE from end to end, and what the paper's theorem claims against what the same run costs.

    PYTHONPATH=src python benchmarks/dfd.py [--method dfd] [--data mnist] [--epsilon 1] [--seed 0] [--validate]
    PYTHONPATH=src python benchmarks/dfd.py --theorem --plans --votes

Of each release two accuracies on the real test set: of the released student, and of a new student that saw nothing but
the released images and their soft labels. With --validate the method sees the first 50,000 training images and both are
scored on the last 10,000; the test set is not read. Settings were chosen that way. --votes counts what the teachers of
PATE, made of the first 50,000 training images, say of the last 10,000, and what that would cost with either accounting.
"""

import argparse
import math
from typing import Any

import numpy as np
import torch

from machine import append
from releases import DELTA, PICTURES, REPOSITORY, Line, load, measure_all, options, timed_release
from veilset.data.images import ImageSet
from veilset.data.tensors import as_floats
from veilset.evaluate.pictures import write_grid
from veilset.evaluate.utility.students import evaluate_utility
from veilset.evaluate.utility.vote_costs import vote_epsilons
from veilset.methods.shared.class_statistics import public_embedding
from veilset.methods.shared.shard_teachers import scores, shard_trainer
from veilset.pipeline.job import Job, draw_plan
from veilset.privacy.accounting import gaussian_epsilon
from veilset.privacy.vault import PublicFacts
from veilset.release.format import Release
from veilset.training.classifier import predict
from veilset.training.settings import TrainingConfig

RESULTS = REPOSITORY / "benchmarks" / "results" / "dfd.jsonl"
CURVE = (0.5, 1.0, 2.0, 5.0, 10.0)

# The paper's appendix: noise scale, sample size, classes; the norm bound for claimed epsilon 1 and 10.
PAPER_NOISE, PAPER_BATCH, PAPER_CLASSES = 100.0, 256, 10
PAPER_BOUND = {1.0: 1e-3, 10.0: 5e-3}


def accuracy_of_student(release: Release, scored_on: ImageSet) -> float:
    """Of the released network."""
    return float((predict(release.model("student"), scored_on.images).argmax(axis=1) == scored_on.labels).mean())


def measure(name: str, epsilon: float, seed: int, asked: argparse.Namespace) -> Line:
    """One release, its student, and a new student of its images."""
    private, scored_on = load(name, asked.validate)
    release, made = timed_release(asked.method, private, epsilon, seed, asked)
    shown = asked.method == "dfd" and asked.preset == "default" and not (asked.validate or asked.set)
    if shown and seed == 0 and epsilon == 1:
        write_grid(REPOSITORY / "docs" / "images" / f"dfd-{PICTURES[name]}.png", release.images, release.labels)
    new_student = None
    if asked.new_epochs:
        recipe = TrainingConfig(epochs=asked.new_epochs or "auto")
        new_student = evaluate_utility(
            release.images, release.labels, release.soft_labels, 10, scored_on, seeds=1, first_seed=seed, config=recipe
        )
    return {
        "benchmark": asked.method,
        "data": name,
        "student": round(accuracy_of_student(release, scored_on), 4),
        "new_student": new_student and round(new_student.accuracy, 4),
        "new_student_epochs": asked.new_epochs,
        **made,
    }


def theorem(claimed: float) -> dict[str, Any]:
    """As many iterations as the paper's Theorem 3 allows for `claimed`, and the exact cost of the same run."""
    bound = PAPER_BOUND[claimed]
    each = 2 * bound**2 * PAPER_CLASSES * PAPER_BATCH / PAPER_NOISE**2  # Renyi cost of an iteration, over lambda

    def paper_epsilon(iterations: int) -> float:
        orders = np.concatenate([1 + np.logspace(-3, 0, 200), np.logspace(math.log10(2), 5, 4000)])
        costs = each * iterations * orders + np.log1p(-1 / orders) - (math.log(DELTA) + np.log(orders)) / (orders - 1)
        return float(costs.min())

    low, high = 1, 10**9
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if paper_epsilon(middle) <= claimed else (low, middle)
    # mu of one iteration: the largest move of what is released over its noise; iterations add up as squares.
    rows = 2 * math.sqrt(PAPER_BATCH) / PAPER_NOISE
    total = 2 * PAPER_BATCH / PAPER_NOISE
    return {
        "benchmark": "theorem",
        "claimed": claimed,
        "norm_bound": bound,
        "iterations": low,
        "epsilon_noise_on_rows": gaussian_epsilon(1 / (rows * math.sqrt(low)), DELTA),
        "epsilon_noise_on_sum": gaussian_epsilon(1 / (total * math.sqrt(low)), DELTA),
        "iterations_at_claimed_rows": int((honest_mu(claimed) / rows) ** 2),
        "delta": DELTA,
    }


def bought(method: str, epsilon: float) -> dict[str, Any]:
    """What the plan of variant B or of PATE shows for 60,000 records of ten classes."""
    facts = PublicFacts(units=60_000, unit="record", shape=(28, 28, 1), class_names=tuple("0123456789"))
    settings = {"variant": "B"} if method == "dfd" else {}
    plan = draw_plan(Job(method=method, epsilon=epsilon, delta=DELTA, settings=settings), facts)
    return {"benchmark": "plan", "method": method, "settings": settings, "epsilon": epsilon, "facts": dict(plan.facts)}


def votes(name: str) -> list[dict[str, Any]]:
    """For each epsilon the plan's votes on real images, and their cost for any data and for these (not for release).

    The teachers are made outside of a session: their exact votes may not leave one.
    """
    private, asked = load(name, validate=True)
    facts = PublicFacts(units=60_000, unit="record", shape=(28, 28, 1), class_names=tuple("0123456789"))
    embedding = public_embedding(facts, random_features=64, pictures=3000, seed=0)

    def codes(images: ImageSet) -> torch.Tensor:
        with torch.no_grad():
            parts = np.array_split(np.arange(len(images)), len(images) // 500)
            return torch.cat([embedding.code(as_floats(torch.from_numpy(images.read(part)), "cpu")) for part in parts])

    owner = np.random.default_rng(0).integers(250, size=len(private))
    features, queries, train = codes(private), codes(asked), shard_trainer(10)
    counts = np.zeros((len(asked), 10), dtype=np.int64)
    for shard in range(250):
        inside = np.flatnonzero(owner == shard)
        head = train(features[inside], torch.from_numpy(private.labels[inside]))
        counts[np.arange(len(asked)), scores(head, queries).argmax(dim=1).numpy()] += 1
    lines = []
    for epsilon in CURVE:
        plan = draw_plan(Job(method="pate", epsilon=epsilon, delta=DELTA), facts)
        count, deviation = plan.facts["answered queries"], float(plan.facts["noise on a count of votes"])
        noisy = counts + np.random.default_rng(1).normal(scale=deviation, size=counts.shape)
        any_data, this_data = vote_epsilons(counts[: int(count)], deviation, DELTA)
        lines.append(
            {
                "benchmark": "votes",
                "data": name,
                "epsilon": epsilon,
                "votes": count,
                "deviation": deviation,
                "right": round(float((noisy.argmax(axis=1) == asked.labels).mean()), 4),
                "epsilon_any_data": any_data,
                "epsilon_this_data": this_data,
                "delta": DELTA,
            }
        )
    return lines


def honest_mu(epsilon: float) -> float:
    """The largest mu of a Gaussian release that costs `epsilon`."""
    low, high = 1e-6, 100.0
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gaussian_epsilon(1 / middle, DELTA) <= epsilon else (low, middle)
    return low


def main() -> None:
    """Measure what the options name and append one line each."""
    parser = options(__doc__)
    parser.add_argument("--method", choices=["dfd", "pate"], default="dfd")
    parser.add_argument("--new-epochs", type=int, default=15, help="of the new student; 0 trains none")
    parser.add_argument("--theorem", action="store_true")
    parser.add_argument("--plans", action="store_true")
    parser.add_argument("--votes", action="store_true")
    asked = parser.parse_args()
    out = asked.out or RESULTS
    if asked.theorem:
        for claimed in PAPER_BOUND:
            append(theorem(claimed), out)
    if asked.plans:
        for epsilon in CURVE:
            for method in ("dfd", "pate"):
                append(bought(method, epsilon), out)
    if asked.votes:
        for line in votes("mnist"):
            append(line, out)
    if asked.theorem or asked.plans or asked.votes:
        return
    measure_all(measure, asked, out)


if __name__ == "__main__":
    main()
