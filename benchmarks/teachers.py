"""Teachers by the automatic rules: dataset x epsilon x seed, test accuracy measured once per run.

    PYTHONPATH=src python benchmarks/teachers.py [--data mnist ...] [--epsilon 1 10] [--seeds 0] [--kind auto]
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
from pathlib import Path
from typing import Any

import veilset.training  # noqa: F401  (thread settings, before torch)

import numpy as np  # isort: skip

from veilset.data.npz import read_npz
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
# Accuracy in percent to reach at epsilon 1 and 10.
TARGETS = {
    "mnist": (97.8, 98.6),
    "fashion_mnist": (87.0, 89.0),
    "cifar10_15k": (53.0, 60.0),
    "celeba_32": (87.0, 91.0),
    "chest_xray_64": (94.0, 96.0),
}
GROUPS = {"chest_xray_64": "patients"}
TIME_LIMIT = 1500


def run(data: str, epsilon: float, seed: int, kind: str, public_name: str | None) -> dict[str, Any]:
    """Plan, train and measure one teacher."""
    set_thread_count()
    groups = GROUPS.get(data)
    records = read_npz(DATA / f"{data}.npz", "train", groups=groups)
    vault = Vault(records, unit="group" if groups else "record")
    public = read_npz(DATA / f"{public_name}.npz", "train") if public_name else None
    begin = time.perf_counter()
    budget = Budget(epsilon, DELTA)
    planned = plan_teacher(vault.facts, budget, TeacherSettings().changed(kind=kind))
    recipe, event = planned.recipe, planned.event
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "ledger.jsonl", {"run": "benchmark"})
        plan = Plan(budget=budget, events=(event,))
        session = Session(vault, plan, ledger, NoiseSource(), workspace=None)
        teacher = train_teacher(session, planned, public, Context(seed=seed))
        session.finish()
        ledger.close()
    seconds = time.perf_counter() - begin
    test = read_npz(DATA / f"{data}.npz", "test")
    right = predict(teacher.network, test.images).argmax(axis=1) == test.labels
    recalls = [float(right[test.labels == label].mean()) for label in np.unique(test.labels)]
    return {
        "data": data,
        "epsilon": epsilon,
        "delta": DELTA,
        "unit": vault.facts.unit,
        "units": vault.facts.units,
        "seed": seed,
        "public": public_name,
        "accuracy": round(100 * float(right.mean()), 2),
        "balanced_accuracy": round(100 * float(np.mean(recalls)), 2),
        "target": TARGETS[data][0 if epsilon <= 1 else 1],
        "seconds": round(seconds, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "recipe": dict(recipe.to_json()),
        "event": event.to_json(),
        "commit": _commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def table() -> str:
    """The lines so far as the table of docs/teachers.md: means over seeds, and the range of accuracies."""
    lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    rows = [
        "| data | epsilon | seeds | accuracy | from - to | balanced | target | seconds | peak MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for data in TARGETS:
        for epsilon in sorted({line["epsilon"] for line in lines}):
            found = [line for line in lines if (line["data"], line["epsilon"], line["public"]) == (data, epsilon, None)]
            if not found:
                continue
            mean = {
                name: float(np.mean([line[name] for line in found]))
                for name in ("accuracy", "balanced_accuracy", "seconds", "peak_mb")
            }
            every = [line["accuracy"] for line in found]
            span = f"{min(every):.2f} - {max(every):.2f}"
            verdict = "reached" if mean["accuracy"] >= found[0]["target"] else "**missed**"
            rows.append(
                f"| {data} | {epsilon:g} | {len(found)} | {mean['accuracy']:.2f} | {span} | "
                f"{mean['balanced_accuracy']:.2f} | {found[0]['target']:g}, {verdict} | {mean['seconds']:.0f} | "
                f"{mean['peak_mb']:.0f} |"
            )
    return "\n".join(rows)


def _commit() -> str:
    found = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=ROOT)
    return found.stdout.strip()


def main() -> None:
    """Run what was asked for, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 10.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--kind", default="auto", help="of TeacherSettings")
    parser.add_argument("--public", default=None, help="name of a pack to use as public images, e.g. tinyimagenet_32")
    parser.add_argument("--one", action="store_true", help="run in this process (one dataset, epsilon and seed)")
    parser.add_argument("--table", action="store_true", help="print the table of all lines so far and run nothing")
    asked = parser.parse_args()
    if asked.table:
        print(table())
        return
    if asked.one:
        line = run(asked.data[0], asked.epsilon[0], asked.seeds[0], asked.kind, asked.public)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        verdict = "reached" if line["accuracy"] >= line["target"] else "missed"
        print(
            f"{line['data']:14} eps {line['epsilon']:<4g} seed {line['seed']}: {line['accuracy']:.2f} "
            f"(balanced {line['balanced_accuracy']:.2f}), target {line['target']:g} {verdict}, "
            f"{line['seconds']:.0f} s, {line['peak_mb']} MB",
            flush=True,
        )
        return
    for seed in asked.seeds:
        for data in asked.data:
            for epsilon in asked.epsilon:
                command = [sys.executable, __file__, "--one", "--data", data, "--epsilon", str(epsilon)]
                command += ["--seeds", str(seed), "--kind", asked.kind]
                command += ["--public", asked.public] if asked.public else []
                try:
                    subprocess.run(command, check=True, timeout=TIME_LIMIT)
                except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                    print(f"{data} eps {epsilon:g} seed {seed} did not end well: {error}", flush=True)


if __name__ == "__main__":
    main()
