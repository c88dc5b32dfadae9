"""What the audit finds: every mechanism, every method, one training run, and the sabotage suite.

PYTHONPATH=src python benchmarks/audit.py [--part power|mechanisms|recheck|methods|one_run|sabotage] [--name merf]
"""

import argparse
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import veilset.training  # noqa: F401  (thread settings, before torch)

import torch  # isort: skip

from veilset.audit.game import Finding, audit, seeded
from veilset.audit.mechanisms import MECHANISMS, mechanism_subject
from veilset.audit.methods import method_subjects
from veilset.audit.one_run import audit_teacher
from veilset.audit.sabotage import SABOTAGES, try_sabotage
from veilset.methods import METHODS

RESULTS = Path(__file__).parent / "results" / "audit.jsonl"


def power(seed: int, name: str) -> Iterator[Finding]:
    """The two for which the bound must come close to the claim."""
    for mechanism in _chosen(("gaussian_sum", "dpsgd_step"), name):
        for epsilon, runs in ((1.0, 20_000), (4.0, 4000)):
            yield audit(mechanism_subject(mechanism, epsilon), runs=runs, make_noise=seeded(seed))


def mechanisms(seed: int, name: str) -> Iterator[Finding]:
    """All mechanisms."""
    for mechanism in _chosen(MECHANISMS, name):
        yield audit(mechanism_subject(mechanism, 4.0), runs=1000, make_noise=seeded(seed))


def recheck(seed: int, name: str) -> Iterator[Finding]:
    """After an alarm, which one sound audit in twenty gives: the same with six times the runs. Use a fresh seed."""
    for mechanism in _chosen(MECHANISMS, name):
        yield audit(mechanism_subject(mechanism, 4.0), runs=6000, make_noise=seeded(seed))
    for method in _chosen(METHODS, name):
        for subject in method_subjects(method, 4.0):
            yield audit(subject, runs=6 * subject.runs, make_noise=seeded(seed))


def methods(seed: int, name: str) -> Iterator[Finding]:
    """All registered methods, in all audited forms."""
    for method in _chosen(METHODS, name):
        for subject in method_subjects(method, 4.0):
            yield audit(subject, make_noise=seeded(seed))


def one_run(seed: int, name: str) -> Iterator[Finding]:
    """One training with many canaries."""
    for epsilon in _chosen(("4", "10"), name):
        yield from audit_teacher(float(epsilon), seed=seed, make_noise=seeded(seed))


def sabotage(seed: int, name: str) -> Iterator[Finding]:
    """All broken twins."""
    twins = {twin.name: twin for twin in SABOTAGES}
    for twin in _chosen(twins, name):
        yield try_sabotage(twins[twin], make_noise=seeded(seed))


def _chosen(names: Iterable[str], name: str) -> list[str]:
    return [known for known in names if name in known]


PARTS = {
    "power": power,
    "sabotage": sabotage,
    "methods": methods,
    "one_run": one_run,
    "mechanisms": mechanisms,
    "recheck": recheck,
}


def main() -> None:
    """Measure and append to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=list(PARTS), action="append")
    parser.add_argument("--name", default="", help="only what has this in its name")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    for part in options.part or [part for part in PARTS if part != "recheck"]:
        start = time.perf_counter()
        for finding in PARTS[part](options.seed, options.name):
            line = json.dumps(
                {
                    "benchmark": "audit",
                    "part": part,
                    **{
                        k: round(v, 4) if isinstance(v, float) and v > 1e-3 else v for k, v in finding.to_json().items()
                    },
                    "share_of_claim": round(finding.lower_bound / finding.claimed_epsilon, 3),
                    "seed": options.seed,
                    "threads": 1,
                    "load": round(os.getloadavg()[0], 1),
                    "machine": platform.machine(),
                    "commit": commit.stdout.strip(),
                    "torch": torch.__version__,
                }
            )
            print(line, flush=True)
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        print(f"{part}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
