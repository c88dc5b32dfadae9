"""Teachers by the automatic rules: dataset x epsilon x seed, test accuracy measured once per run.

    PYTHONPATH=src python benchmarks/teachers.py [--data mnist ...] [--epsilon 1 10] [--seeds 0] [--kind auto]
        [--features auto]
    PYTHONPATH=src python benchmarks/teachers.py --table

Data comes from $VEILSET_DATA, else ../shared/data. Every run is a fresh process, so that its peak memory is its own;
it appends one JSON line to benchmarks/results/teachers.jsonl. The privacy noise comes from the operating system, so
two runs of one seed differ by it.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import veilset.training  # noqa: F401  (thread settings, before torch)

import numpy as np  # isort: skip
from versions import versions_of  # isort: skip

from veilset.core.records import Records
from veilset.data.images import ImageSet
from veilset.data.opening import open_images
from veilset.data.overlap import find_overlap
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

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("VEILSET_DATA") or ROOT.parent / "shared" / "data")
RESULTS = Path(__file__).parent / "results" / "teachers.jsonl"
DELTA = 1e-5
# Accuracy in percent at epsilon 1 and 10 that was known before, on wavelets and on pretrained features.
KNOWN = {
    "wavelets": {
        "mnist": (97.8, 98.6),
        "fashion_mnist": (87.0, 89.0),
        "cifar10_15k": (53.0, 60.0),
        "celeba_32": (87.0, 91.0),
        "chest_xray_64": (94.0, 96.0),
    },
    "pretrained": {
        "cifar10_15k": (82.1, 83.6),
        "celeba_32": (89.5, 90.0),
        "chest_xray_64": (94.3, 95.5),
    },
}
SMALL = tuple(KNOWN["wavelets"])
DATASETS = (*SMALL, "celeba_64", "chest_xray_224")
GROUPS = {"chest_xray_64": "patients", "chest_xray_224": "patient"}
TIME_LIMIT = 1500


def read(data: str, split: str, groups: str | None = None) -> Records:
    """A pack of small images, or a folder of larger ones."""
    place = DATA / f"{data}.npz"
    return open_images(f"{place if place.exists() else DATA / data}:{split}", groups=groups)


def public_images(name: str, shape: tuple[int, int, int], private: str) -> Records:
    """The training images of a pack in the private shape, without those that are private, too."""
    place = DATA / f"{name}.npz"
    found = open_images(f"{place if place.exists() else DATA / name}:train", size=shape[0], channels=shape[2])
    records = ImageSet(found.read(np.arange(len(found.labels))), found.labels, class_names=found.class_names)
    return records.subset(np.flatnonzero(~find_overlap(read(private, "train"), records)))


def known_before(data: str, epsilon: float, features: str) -> float | None:
    """What to compare with, where there is anything."""
    pair = KNOWN["wavelets" if features == "wavelets" else "pretrained"].get(data)
    return None if pair is None else pair[0 if epsilon <= 1 else 1]


def run(data: str, epsilon: float, seed: int, settings: TeacherSettings, public_name: str | None) -> dict[str, Any]:
    """Plan, train and measure one teacher."""
    set_thread_count()
    groups = GROUPS.get(data)
    vault = Vault(read(data, "train", groups), unit="group" if groups else "record")
    public = public_images(public_name, vault.facts.shape, data) if public_name else None
    begin = time.perf_counter()
    budget = Budget(epsilon, DELTA)
    planned = plan_teacher(vault.facts, budget, settings)
    recipe, event = planned.recipe, planned.event
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "ledger.jsonl", {"run": "benchmark"})
        plan = Plan(budget=budget, events=(event,))
        session = Session(vault, plan, ledger, NoiseSource(), workspace=None)
        teacher = train_teacher(session, planned, public, Context(seed=seed))
        session.finish()
        ledger.close()
    seconds = time.perf_counter() - begin
    test = read(data, "test")
    right = predict(teacher.network, test.read(np.arange(len(test.labels)))).argmax(axis=1) == test.labels
    recalls = [float(right[test.labels == label].mean()) for label in np.unique(test.labels)]
    return {
        "data": data,
        "epsilon": epsilon,
        "delta": DELTA,
        "unit": vault.facts.unit,
        "units": vault.facts.units,
        "seed": seed,
        "public": public_name,
        "features": recipe.features if recipe.kind == "head" else None,
        "features_sha256": teacher.description.get("features_sha256"),
        "accuracy": round(100 * float(right.mean()), 2),
        "balanced_accuracy": round(100 * float(np.mean(recalls)), 2),
        "known_before": known_before(data, epsilon, recipe.features),
        "seconds": round(seconds, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "recipe": asdict(recipe),
        "event": event.to_json(),
        "versions": versions_of("teachers"),
        "commit": _commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def table() -> str:
    """The lines so far as the table of docs/explanation/teachers.md: means over seeds, and the range of accuracies."""
    lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    rows = [
        "| data | features | epsilon | seeds | accuracy | from - to | balanced | known before | seconds | peak MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    kinds = {(line["data"], features_of(line), line["epsilon"]) for line in lines if line["public"] is None}
    for data, features, epsilon in sorted(kinds, key=lambda kind: (DATASETS.index(kind[0]), kind[1], kind[2])):
        found = [
            line
            for line in lines
            if (line["data"], features_of(line), line["epsilon"], line["public"]) == (data, features, epsilon, None)
        ]
        mean = {
            name: float(np.mean([line[name] for line in found]))
            for name in ("accuracy", "balanced_accuracy", "seconds", "peak_mb")
        }
        every = [line["accuracy"] for line in found]
        known = known_before(data, epsilon, features)
        verdict = "" if known is None else f"{known:g}" if mean["accuracy"] >= known else f"{known:g}, **missed**"
        rows.append(
            f"| {data} | {features} | {epsilon:g} | {len(found)} | {mean['accuracy']:.2f} | "
            f"{min(every):.2f} - {max(every):.2f} | {mean['balanced_accuracy']:.2f} | {verdict} | "
            f"{mean['seconds']:.0f} | {mean['peak_mb']:.0f} |"
        )
    return "\n".join(rows)


def features_of(line: dict[str, Any]) -> str:
    """What the head of a line read; lines of old versions knew wavelets alone."""
    return str(line.get("features") or "wavelets")


def _commit() -> str:
    found = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=ROOT)
    return found.stdout.strip()


def main() -> None:
    """Run what was asked for, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=list(SMALL), choices=list(DATASETS))
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 10.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--kind", default="auto", help="of TeacherSettings")
    parser.add_argument("--features", default="auto", help="of TeacherSettings")
    parser.add_argument("--public", default=None, help="name of a pack to use as public images, e.g. tinyimagenet_32")
    parser.add_argument("--one", action="store_true", help="run in this process (one dataset, epsilon and seed)")
    parser.add_argument("--table", action="store_true", help="print the table of all lines so far and run nothing")
    asked = parser.parse_args()
    if asked.table:
        print(table())
        return
    if asked.one:
        settings = TeacherSettings(kind=asked.kind, features=asked.features)
        line = run(asked.data[0], asked.epsilon[0], asked.seeds[0], settings, asked.public)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(
            f"{line['data']:14} {features_of(line)} eps {line['epsilon']:<4g} seed {line['seed']}: "
            f"{line['accuracy']:.2f} (balanced {line['balanced_accuracy']:.2f}), known {line['known_before']}, "
            f"{line['seconds']:.0f} s, {line['peak_mb']} MB",
            flush=True,
        )
        return
    for seed in asked.seeds:
        for data in asked.data:
            for epsilon in asked.epsilon:
                command = [sys.executable, __file__, "--one", "--data", data, "--epsilon", str(epsilon)]
                command += ["--seeds", str(seed), "--kind", asked.kind, "--features", asked.features]
                command += ["--public", asked.public] if asked.public else []
                try:
                    subprocess.run(command, check=True, timeout=TIME_LIMIT)
                except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                    print(f"{data} eps {epsilon:g} seed {seed} did not end well: {error}", flush=True)


if __name__ == "__main__":
    main()
