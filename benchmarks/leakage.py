"""Utility beside leakage: what networks reach, and how well attacks tell whom they learned from (thesis, Table 4.1).

    scripts/bench leakage [--data mnist cifar10_15k] [--rows ...] [--members 1000] [--attacks black white shadows]
                          [--network convnet --width 16] [--seed 0]
    scripts/bench leakage --table

Members, nonmembers and the reference images of a defence are disjoint random parts of the training images; accuracy is
that on the test images. No setting was chosen by any of these numbers but for the size, which fits two cores. Rows with
a guarantee are there at several epsilons (the thesis' Table 4.4), and pldk as published with one thing changed (Table
4.5). Of tinyimagenet_32 a hundred classes are private: many classes of few images.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import veilset.training  # noqa: F401  (thread settings, before torch)

import defences  # isort: skip
import thesis_defences  # isort: skip
from defences import Data  # isort: skip
from releases import DATA, DELTA, REPOSITORY  # isort: skip
from machine import append  # isort: skip
from numpy.typing import NDArray
from torch import nn

from veilset.core.randomness import numpy_generator
from veilset.data.images import ImageSet
from veilset.evaluate.attacks import AttackConfig, Target, run_attacks
from veilset.evaluate.attacks.targets import plain_shadows
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.vault import Vault
from veilset.training.classifier import predict

RESULTS = REPOSITORY / "benchmarks" / "results" / "leakage.jsonl"
SHOWN = 1000  # members of the table's lines
ATTACKS = {
    "black": ("confidence", "entropy", "modified-entropy", "label-only", "learned-black-box"),
    "white": ("gradient-norm", "white-box"),
    "shadows": ("lira", "rmia"),
}
PUBLIC = {"mnist": "fashion_mnist", "cifar10_15k": "tinyimagenet_32", "tinyimagenet_32": "cifar10_15k"}
CLASSES = {"tinyimagenet_32": 100}  # of a pack with more of them, those with the lowest numbers
EPSILON = 10.0
EPSILONS = (1.0, 50.0, 200.0)
# A vault of a few thousand records fills no larger batches.
STUDENT = {"copies": "4000", "student_updates": "300"}
PLDK = {"network_batch": "512", "networks": "20", "moves": "15", **STUDENT}
PUBLISHED = {"start": "real", "expert_steps": "100", "expert_every": "5", "iterations": "30", **STUDENT}


@cache
def load(name: str, count: int, seed: int) -> tuple[Data, ImageSet, ImageSet]:
    """What defences may see, nonmembers to attack, and test images."""
    pack = np.load(DATA / f"{name}.npz")
    classes = CLASSES.get(name)

    def among(side: str) -> NDArray[np.int64]:
        labels = pack[f"{side}_labels"]
        return np.flatnonzero(labels < (labels.max() + 1 if classes is None else classes))

    rows = among("train")
    order = rows[numpy_generator(seed, "leakage benchmark").permutation(len(rows))]
    if len(order) < 3 * count:
        raise SystemExit(f"{name} has {len(order)} training images, too few for three parts of {count}.")

    def part(pack: Any, side: str, rows: Any) -> ImageSet:
        images, labels = pack[f"{side}_images"][rows], pack[f"{side}_labels"][rows].astype(np.int64)
        return ImageSet(images.reshape(*images.shape[:3], -1), labels)

    members, nonmembers, reference = (part(pack, "train", order[k * count : (k + 1) * count]) for k in range(3))
    public = part(np.load(DATA / f"{PUBLIC[name]}.npz"), "train", slice(0, 2 * count))
    data = Data(members=members, public=public, reference=reference)
    return data, nonmembers, part(pack, "test", among("test"))


def released(
    method: str, settings: dict[str, str], *, epsilon: float = EPSILON, **options: Any
) -> Callable[[Data, int], nn.Module]:
    """The student of one of our releases."""

    def make(data: Data, seed: int) -> nn.Module:
        # A seeded noise makes the measurement repeatable; a release made for others must not be.
        job = Job(
            method=method, epsilon=epsilon, delta=DELTA, settings=settings, seed=seed, insecure_seed=seed, **options
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
    "DP-SGD, epsilon 10": partial(defences.private_sgd, epsilon=EPSILON, delta=DELTA),
    "PATE, epsilon 10": released("pate", {}, preset="fast"),
    "pldk, epsilon 10": released("pldk", PLDK),
}
USUAL = tuple(ROWS)
for _epsilon in EPSILONS:
    ROWS[f"DP-SGD, epsilon {_epsilon:g}"] = partial(defences.private_sgd, epsilon=_epsilon, delta=DELTA)
    ROWS[f"PATE, epsilon {_epsilon:g}"] = released("pate", {}, preset="fast", epsilon=_epsilon)
    ROWS[f"pldk, epsilon {_epsilon:g}"] = released("pldk", PLDK, epsilon=_epsilon)
for _weight in (1.0, 3.0, 12.0):  # the usual row has 6
    ROWS[f"adversarial regularisation, weight {_weight:g}"] = partial(
        defences.adversarial_regularisation, weight=_weight
    )
# One thing changed in the form as published, which has no guarantee.
CHANGED = {
    "hard labels alone": {"alpha": "0"},
    "alpha .6": {"alpha": "0.6"},
    "1 image a class": {"images_per_class": "1"},
    "50 images a class": {"images_per_class": "50"},
    "led by class means": {"matching": "distribution", "start": "auto"},
    "led by class gradients": {"matching": "gradient", "start": "auto"},
    "led by a kernel": {"matching": "kernel", "start": "auto"},
    "a resnet18 as student": {"student": "resnet18@16"},
}
for _name, _change in CHANGED.items():
    ROWS[f"pldk as published, {_name}"] = released("pldk", {**PUBLISHED, **_change}, as_published=True)


def settings_of(row: str) -> dict[str, str]:
    """Of a row that is a release of pldk."""
    first, _, changed = row.partition(", ")
    if first == "pldk as published":
        return {**PUBLISHED, **CHANGED.get(changed, {})}
    return PLDK if first == "pldk" else {}


def epsilon_of(row: str) -> float | None:
    """Of a row with a guarantee: its name ends with it."""
    return float(row.rpartition(" ")[2]) if ", epsilon " in row else None


def measure(name: str, row: str, seed: int, count: int, attacks: Sequence[str]) -> dict[str, Any]:
    """One row: make the network, score it, attack it."""
    data, nonmembers, test = load(name, count, seed)
    processor = time.process_time()
    network = ROWS[row](data, seed)
    made = time.process_time() - processor
    classes, shape = len(data.members.class_names), data.members.shape
    # Shadows are undefended, whatever the row: nobody made one by each defence.
    shadows = plain_shadows(defences.NETWORK, shape, classes, recipe=defences.UNDEFENDED)
    target = Target(description=row, classes=classes, network=network, train_shadow=shadows)
    report = run_attacks(target, data.members, nonmembers, attacks=attacks, config=AttackConfig(seed=seed))

    def accuracy(records: ImageSet) -> float:
        return round(float((predict(network, records.images).argmax(axis=1) == records.labels).mean()), 4)

    return {
        "benchmark": "leakage",
        "data": name,
        "row": row,
        "seed": seed,
        "members": count,
        "network": f"{defences.NETWORK}, width {defences.WIDTH}" if "PATE" not in row else "convnet",
        "epsilon": epsilon_of(row),
        "delta": None if epsilon_of(row) is None else DELTA,
        "settings": settings_of(row),
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
        if line["members"] == SHOWN and line["network"].startswith("convnet"):
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
    parser.add_argument("--rows", nargs="+", default=list(USUAL), choices=list(ROWS))
    parser.add_argument("--attacks", nargs="+", default=["black"], choices=list(ATTACKS))
    parser.add_argument("--network", default=defences.NETWORK, help="of every row that is not a release")
    parser.add_argument("--width", type=int, default=defences.WIDTH)
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
    parser.add_argument("--members", type=int, default=1000, help="and as many nonmembers and reference images")
    parser.add_argument("--table", action="store_true", help="measure nothing, print the table of the results")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.table:
        print(table(arguments.out))
        return
    defences.NETWORK, defences.WIDTH = arguments.network, arguments.width
    attacks = [attack for kind in arguments.attacks for attack in ATTACKS[kind]]
    for seed in arguments.seed:
        for row in arguments.rows:
            for name in arguments.data:
                append(measure(name, row, seed, arguments.members, attacks), arguments.out)


if __name__ == "__main__":
    main()
