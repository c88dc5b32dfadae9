"""Model conversion: what a student learns from a trained network alone, and what an attacker reads off that student.

    PYTHONPATH=src python benchmarks/convert.py [--data mnist] [--seed 0] [--network convnet] [--epsilon 10]

A foreign network is trained on the training images without noise, stored as a file, and converted: no image is read.
A certified one is the student of a dfd release at --epsilon. Both students are scored on the test images. The attack
"inversion" makes images of every class from a student and compares them with members and others.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import veilset.training  # noqa: F401  (thread settings, before torch)

from machine import append  # isort: skip
from releases import DELTA, REPOSITORY, load  # isort: skip

from torch import nn

from veilset.core.files import save_tensors
from veilset.data.images import ImageSet
from veilset.evaluate.attacks import AttackConfig, Target, run_attacks
from veilset.models import build_network
from veilset.pipeline.convert import Conversion, convert_network, convert_release
from veilset.pipeline.job import Job
from veilset.pipeline.model_files import Declared
from veilset.pipeline.run import run
from veilset.privacy.vault import Vault
from veilset.training.classifier import predict, train_classifier
from veilset.training.settings import TrainingConfig

RESULTS = REPOSITORY / "benchmarks" / "results" / "convert.jsonl"
ATTACKED = 2000


def accuracy(network: nn.Module, records: ImageSet) -> float:
    """On real images."""
    return round(float((predict(network, records.images).argmax(axis=1) == records.labels).mean()), 4)


def inversion(network: nn.Module, members: ImageSet, others: ImageSet, classes: int, seed: int) -> dict[str, float]:
    """How well images made from the network tell members from others."""
    half = (members.subset(np.arange(ATTACKED)), others.subset(np.arange(ATTACKED)))
    target = Target(description="student", classes=classes, network=network)
    (found,) = run_attacks(target, *half, attacks=("inversion",), config=AttackConfig(seed=seed)).results
    return {"auc": round(found.auc.value, 4), "low": round(found.auc.interval[0], 4)}


def measure(name: str, seed: int, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """One line for the foreign network, one for the certified one."""
    private, test = load(name, validate=False)
    classes, lines = len(private.class_names), []
    with tempfile.TemporaryDirectory() as folder:
        own = build_network(asked.network, shape=private.shape, classes=classes, seed=seed)
        train_classifier(own, private.images, private.labels, config=TrainingConfig(epochs=asked.epochs), seed=seed)
        place = Path(folder) / "own.safetensors"
        save_tensors(own.state_dict(), place)
        conversion = Conversion(samples=asked.samples, seed=seed)
        declared = Declared(network=asked.network, size=private.shape[0])
        job = Job(method="dfd", epsilon=asked.epsilon, delta=DELTA, seed=seed, samples=1000)
        for kind in asked.kinds:
            processor = time.process_time()
            if kind == "foreign":
                teacher, release = own, convert_network(place, declared, conversion)
            else:
                first = run(Vault(private), job, workspace=Path(folder) / "run")
                teacher = first.model("student")
                release = convert_release(first.save(Path(folder) / "first"), conversion)
            student = release.model("student")
            lines.append(
                {
                    "benchmark": "convert",
                    "method": "dfd",
                    "data": name,
                    "kind": kind,
                    "network": asked.network if kind == "foreign" else "convnet",
                    "seed": seed,
                    "guarantee": release.certificate.guarantee,
                    "epsilon": release.certificate.epsilon,
                    "teacher": accuracy(teacher, test),
                    "student": accuracy(student, test),
                    "inversion_of_teacher": inversion(teacher, private, test, classes, seed),
                    "inversion_of_student": inversion(student, private, test, classes, seed),
                    "cpu_seconds": round(time.process_time() - processor),
                }
            )
    return lines


def main() -> None:
    """Measure what the options name and append one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["mnist"])
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
    parser.add_argument("--network", default="convnet@16")
    parser.add_argument("--epochs", type=int, default=2, help="of the foreign network")
    parser.add_argument("--kinds", nargs="+", default=["foreign", "certified"], choices=["foreign", "certified"])
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    for seed in asked.seed:
        for name in asked.data:
            for line in measure(name, seed, asked):
                append(line, asked.out)


if __name__ == "__main__":
    main()
