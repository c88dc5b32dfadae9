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
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import veilset.training  # noqa: F401  (thread settings, before torch)

import torch  # isort: skip

from machine import append  # isort: skip

from veilset.data.images import ImageSet
from veilset.evaluate.pictures import write_grid
from veilset.evaluate.utility import evaluate_utility
from veilset.evaluate.vote_costs import vote_epsilons
from veilset.models import build_network
from veilset.pipeline.synthesize import Job, draw_plan, run
from veilset.privacy.accounting import gaussian_epsilon
from veilset.privacy.vault import PublicFacts, Vault
from veilset.release.format import Release
from veilset.training.class_statistics import as_floats, public_embedding
from veilset.training.plain import predict
from veilset.training.recipe import TrainingConfig
from veilset.training.shard_teachers import scores, shard_trainer

REPOSITORY = Path(__file__).parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results" / "dfd.jsonl"
DATA = Path(os.environ.get("VEILSET_DATA") or REPOSITORY.parent / "shared" / "data")
PICTURES = {"mnist": "dfd-mnist.png", "fashion_mnist": "dfd-fashion.png"}
DELTA = 1e-5
CURVE = (0.5, 1.0, 2.0, 5.0, 10.0)
VALIDATION_START = 50_000

# The paper's appendix: noise scale, sample size, classes; the norm bound for claimed epsilon 1 and 10.
PAPER_NOISE, PAPER_BATCH, PAPER_CLASSES = 100.0, 256, 10
PAPER_BOUND = {1.0: 1e-3, 10.0: 5e-3}


def load(name: str, validate: bool) -> tuple[ImageSet, ImageSet]:
    """The private records and those to score on."""
    pack = np.load(DATA / f"{name}.npz")
    train = ImageSet(pack["train_images"][..., None], pack["train_labels"].astype(np.int64))
    if validate:
        rows = np.arange(len(train))
        return train.subset(rows[:VALIDATION_START]), train.subset(rows[VALIDATION_START:])
    return train, ImageSet(pack["test_images"][..., None], pack["test_labels"].astype(np.int64))


def accuracy_of_student(release: Release, scored_on: ImageSet) -> float:
    """Of the released network."""
    weights, description = release.models["student"]
    height, width, channels = description["shape"]
    network = build_network(description["name"], shape=(height, width, channels), classes=description["classes"])
    network.load_state_dict(dict(weights))
    logits = predict(network, scored_on.read(np.arange(len(scored_on))))
    return float((logits.argmax(axis=1) == scored_on.labels).mean())


def measure(name: str, epsilon: float, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One release, its student, and a new student of its images."""
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
    peak_mb = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    shown = arguments.method == "dfd" and arguments.preset == "default" and not (arguments.validate or settings)
    if shown and seed == 0 and epsilon == 1:
        write_grid(REPOSITORY / "docs" / "images" / PICTURES[name], release.images, release.labels)
    student = accuracy_of_student(release, scored_on)
    new_student = None
    if arguments.new_epochs:
        recipe = TrainingConfig(epochs=arguments.new_epochs)
        new_student = evaluate_utility(
            release.images, release.labels, release.soft_labels, 10, scored_on, seeds=1, first_seed=seed, config=recipe
        )
    return {
        "benchmark": arguments.method,
        "data": name,
        "scored_on": "last 10,000 of train" if arguments.validate else "test",
        "student": round(student, 4),
        "new_student": new_student and round(new_student.accuracy, 4),
        "new_student_epochs": arguments.new_epochs,
        "epsilon": epsilon,
        "delta": DELTA,
        "seed": seed,
        "preset": arguments.preset,
        "settings": settings,
        "samples": len(release.images),
        "seconds": round(seconds),
        "cpu_seconds": round(cpu_seconds),
        "peak_mb": peak_mb,
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=["dfd", "pate"], default="dfd")
    parser.add_argument("--data", nargs="+", choices=list(PICTURES), default=list(PICTURES))
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 10.0])
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
    parser.add_argument("--preset", default="default")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--new-epochs", type=int, default=15, help="of the new student; 0 trains none")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--theorem", action="store_true")
    parser.add_argument("--plans", action="store_true")
    parser.add_argument("--votes", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.theorem:
        for claimed in PAPER_BOUND:
            append(theorem(claimed), arguments.out)
    if arguments.plans:
        for epsilon in CURVE:
            for method in ("dfd", "pate"):
                append(bought(method, epsilon), arguments.out)
    if arguments.votes:
        for line in votes("mnist"):
            append(line, arguments.out)
    if arguments.theorem or arguments.plans or arguments.votes:
        return
    for seed in arguments.seed:
        for epsilon in arguments.epsilon:
            for name in arguments.data:
                append(measure(name, epsilon, seed, arguments), arguments.out)


if __name__ == "__main__":
    main()
