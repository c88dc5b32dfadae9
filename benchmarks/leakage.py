"""Utility beside leakage: what networks reach, and how well attacks tell whom they learned from (thesis, Table 4.1).

    PYTHONPATH=src python benchmarks/leakage.py [--data mnist cifar10_15k] [--rows ...] [--seed 0]
    PYTHONPATH=src python benchmarks/leakage.py --table

Members, nonmembers and the reference images of a defence are disjoint random parts of the training images; accuracy is
that on the test images. No setting was chosen by any of these numbers but for the size, which fits two cores.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import veilset.training  # noqa: F401  (thread settings, before torch)

import defences  # isort: skip
import thesis_defences  # isort: skip
from defences import Data  # isort: skip
from releases import DATA, DELTA, REPOSITORY  # isort: skip
from machine import append  # isort: skip
from torch import nn

from veilset.core.randomness import numpy_generator
from veilset.data.images import ImageSet
from veilset.evaluate.attacks import AttackConfig, Target, run_attacks
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.vault import Vault
from veilset.training.classifier import predict

RESULTS = REPOSITORY / "benchmarks" / "results" / "leakage.jsonl"
ATTACKS = ("confidence", "entropy", "modified-entropy", "label-only", "learned-black-box")
PUBLIC = {"mnist": "fashion_mnist", "cifar10_15k": "tinyimagenet_32"}
EPSILON = 10.0
# A vault of a few thousand records fills no larger batches.
STUDENT = {"copies": "4000", "student_updates": "300"}
PLDK = {"network_batch": "512", "networks": "20", "moves": "15", **STUDENT}
PUBLISHED = {"start": "real", "expert_steps": "100", "expert_every": "5", "iterations": "30", **STUDENT}


@cache
def load(name: str, count: int, seed: int) -> tuple[Data, ImageSet, ImageSet]:
    """What defences may see, nonmembers to attack, and test images."""
    pack = np.load(DATA / f"{name}.npz")
    order = numpy_generator(seed, "leakage benchmark").permutation(len(pack["train_labels"]))

    def part(pack: Any, side: str, rows: Any) -> ImageSet:
        images = pack[f"{side}_images"][rows]
        return ImageSet(images.reshape(*images.shape[:3], -1), pack[f"{side}_labels"][rows].astype(np.int64))

    members, nonmembers, reference = (part(pack, "train", order[k * count : (k + 1) * count]) for k in range(3))
    public = part(np.load(DATA / f"{PUBLIC[name]}.npz"), "train", slice(0, 2 * count))
    data = Data(members=members, public=public, reference=reference)
    return data, nonmembers, part(pack, "test", slice(None))


def released(method: str, settings: dict[str, str], **options: Any) -> Callable[[Data, int], nn.Module]:
    """The student of one of our releases."""

    def make(data: Data, seed: int) -> nn.Module:
        # A seeded noise makes the measurement repeatable; a release made for others must not be.
        job = Job(
            method=method, epsilon=EPSILON, delta=DELTA, settings=settings, seed=seed, insecure_seed=seed, **options
        )
        with tempfile.TemporaryDirectory() as folder:
            release = run(Vault(data.members), job, workspace=Path(folder) / "run")
        student: nn.Module = release.model("student")
        return student

    return make


ROWS: dict[str, Callable[[Data, int], nn.Module]] = {
    "no defence": defences.undefended,
    "weight decay, label smoothing": defences.regularised,
    "adversarial regularisation": defences.adversarial_regularisation,
    "DMP, public images": defences.membership_privacy_distillation,
    "DMP, synthetic images": lambda data, seed: thesis_defences.synthetic_distillation(
        data, seed, epsilon=EPSILON, delta=DELTA
    ),
    **thesis_defences.ROWS,
    "pldk as published": released("pldk", PUBLISHED, as_published=True),
    "DP-SGD, epsilon 10": lambda data, seed: defences.private_sgd(data, seed, epsilon=EPSILON, delta=DELTA),
    "PATE, epsilon 10": released("pate", {}, preset="fast"),
    "pldk, epsilon 10": released("pldk", PLDK),
}


def measure(name: str, row: str, seed: int, count: int) -> dict[str, Any]:
    """One row: make the network, score it, attack it."""
    data, nonmembers, test = load(name, count, seed)
    processor = time.process_time()
    network = ROWS[row](data, seed)
    made = time.process_time() - processor
    target = Target(description=row, classes=len(data.members.class_names), network=network)
    report = run_attacks(target, data.members, nonmembers, attacks=ATTACKS, config=AttackConfig(seed=seed))

    def accuracy(records: ImageSet) -> float:
        return round(float((predict(network, records.images).argmax(axis=1) == records.labels).mean()), 4)

    return {
        "benchmark": "leakage",
        "data": name,
        "row": row,
        "seed": seed,
        "members": count,
        "network": f"{defences.NETWORK}, width {defences.WIDTH}" if "PATE" not in row else "convnet",
        "epsilon": EPSILON if "epsilon" in row else None,
        "delta": DELTA if "epsilon" in row else None,
        "settings": {"pldk as published": PUBLISHED, "pldk, epsilon 10": PLDK}.get(row, {}),
        "accuracy": accuracy(test),
        "accuracy_on_members": accuracy(data.members),
        "attacks": [
            {
                "name": result.attack.name,
                "auc": round(result.auc.value, 4),
                "auc_interval": [round(end, 4) for end in result.auc.interval],
                "accuracy": round(result.accuracy.value, 4),
                "tpr_at_fpr_0.01": round(result.rates[0.01].value, 4),
                "pairs": result.pairs,
            }
            for result in report.results
        ],
        "cpu_seconds": round(made),
        "cpu_seconds_of_attacks": round(time.process_time() - processor - made),
    }


def table(results: Path) -> str:
    """Markdown of the latest line of each row: the largest number of any attack in every column."""
    latest = {}
    for text in results.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        latest[line["data"], line["row"]] = line
    rows = ["| data | | test accuracy, % | attack accuracy, % | AUC (interval) | TPR at 1 % FPR, % |", "|---" * 6 + "|"]
    for name in PUBLIC:
        for row in ROWS:
            if (line := latest.get((name, row))) is None:
                continue
            attacks = line["attacks"]
            best = max(attacks, key=lambda found: found["auc"])
            low, high = best["auc_interval"]
            largest = {key: 100 * max(found[key] for found in attacks) for key in ("accuracy", "tpr_at_fpr_0.01")}
            rows.append(
                f"| {name} | {row} | {100 * line['accuracy']:.1f} | {largest['accuracy']:.1f} | "
                f"{best['auc']:.3f} ({low:.3f} to {high:.3f}) | {largest['tpr_at_fpr_0.01']:.1f} |"
            )
    return "\n".join(rows)


def main() -> None:
    """Measure every row that the options name and append one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["cifar10_15k", "mnist"], choices=list(PUBLIC))
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
    parser.add_argument("--members", type=int, default=1000, help="and as many nonmembers and reference images")
    parser.add_argument("--table", action="store_true", help="measure nothing, print the table of the results")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.table:
        print(table(arguments.out))
        return
    for seed in arguments.seed:
        for row in arguments.rows:
            for name in arguments.data:
                append(measure(name, row, seed, arguments.members), arguments.out)


if __name__ == "__main__":
    main()
