"""The sanitized GAN: what students of its releases reach, and what the published noise really costs.

    scripts/bench sanitized_gan [--only TEXT] [--seeds 0 1 2] [--set K=V] [--validate]
    scripts/bench sanitized_gan --costs

Each run appends one JSON line to benchmarks/results/sanitized_gan.jsonl. Data comes from $VEILSET_DATA, else
../shared/data. With --validate the method sees five sixths of the training images (or patients), students are scored on
the rest, the test set is not read, and nothing is written: that is how settings were chosen.
"""

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import veilset.training  # noqa: F401  (thread settings, before torch)

from imgsyn import GROUPS, ROOT, load  # isort: skip
from machine import append  # isort: skip

from veilset.evaluate.pictures import write_grid
from veilset.evaluate.utility.students import evaluate_utility
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.events import Event
from veilset.privacy.vault import Vault
from veilset.release.format import load_release
from veilset.release.verify import verify_release

RESULTS = Path(__file__).parent / "results" / "sanitized_gan.jsonl"
DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of the table."""

    private: str
    epsilon: float
    preset: str = "default"
    settings: Mapping[str, str] = field(default_factory=dict)
    metric: str = "accuracy"
    target: float | None = None


# Fewer and larger shards in turn: a visit of a tiny shard would tell nothing.
IN_TURN = {"scheme": "in_turn", "critics": "10", "steps": "100", "points": "10"}
CASES = [
    Case(private="mnist", epsilon=10.0, target=65.0),
    Case(private="mnist", epsilon=1.0),
    Case(private="mnist", epsilon=10.0, settings=IN_TURN),
    Case(private="chest_xray_64", epsilon=10.0, preset="few", metric="balanced_accuracy", target=65.0),
]


def measure(case: Case, seed: int, extra: Mapping[str, str], *, validate: bool) -> dict[str, Any]:
    """Make, verify and load one release, and train its student."""
    private, test = load(case.private, validate)
    vault = Vault(private, unit="group" if case.private in GROUPS else "record")
    settings = {**case.settings, **extra}
    job = Job(
        method="sanitized_gan", epsilon=case.epsilon, delta=DELTA, preset=case.preset, settings=settings, seed=seed
    )
    clock, processor = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run(vault, job, workspace=Path(folder) / "run").save(Path(folder) / "release")
        seconds, cpu_seconds = time.perf_counter() - clock, time.process_time() - processor
        found, release = verify_release(Path(folder) / "release"), load_release(Path(folder) / "release")
    if not found.ok:
        raise SystemExit(f"The release does not verify: {found.problems}")
    result = evaluate_utility(
        release.images, release.labels, release.soft_labels, vault.facts.classes, test, seeds=1, first_seed=seed
    )
    if seed == 0 and not validate and not settings:
        name = f"sanitized-gan-{case.private}-eps{case.epsilon:g}.png".replace("_", "-")
        write_grid(ROOT / "docs" / "images" / name, release.images, release.labels)
    return {
        "benchmark": "sanitized_gan",
        "scored_on": "a sixth of train" if validate else "test",
        "private": case.private,
        "epsilon": case.epsilon,
        "certified_epsilon": found.epsilon,
        "delta": DELTA,
        "unit": vault.facts.unit,
        "seed": seed,
        "preset": case.preset,
        "settings": settings,
        "samples": len(release),
        "accuracy": round(100 * result.accuracy, 2),
        "balanced_accuracy": round(100 * result.balanced_accuracy, 2),
        "metric": case.metric,
        "target": case.target,
        "warnings": list(release.certificate.warnings),
        "seconds": round(seconds),
        "cpu_seconds": round(cpu_seconds),
    }


def costs() -> list[dict[str, Any]]:
    """Published noise against what it costs: one critic on all records, B rows that move together, T steps."""
    published = [
        ("thesis, noise 1.02", 32, 2000, 1.02, "10"),
        ("thesis, noise 0.07", 32, 2000, 0.07, "10"),
        ("GS-WGAN on MNIST", 32, 20_000, 1.07, "10"),
    ]
    lines = []
    for name, batch, steps, noise, claimed in published:
        # The noise is meant for one row; a critic's rows all move together, sqrt(batch) times as far.
        together = noise / batch**0.5
        count = steps if name.startswith("thesis") else steps // 1000  # GS-WGAN draws one of 1000 shards each time
        event = Event(label="critic", noise_multiplier=together, count=count)
        epsilon = epsilon_of([event], DELTA, "rdp")
        lines.append({"benchmark": "published noise", "what": name, "claimed": claimed, "epsilon": round(epsilon)})
    return lines


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--costs", action="store_true")
    asked = parser.parse_args()
    extra = dict(pair.split("=", 1) for pair in asked.set)
    for line in costs() if asked.costs else []:
        append(line, RESULTS)
    for seed in asked.seeds if not asked.costs else []:
        for case in CASES:
            name = f"{case.private} eps {case.epsilon:g} {dict(case.settings)}"
            if asked.only not in name:
                continue
            line = measure(case, seed, extra, validate=asked.validate)
            if not asked.validate:
                append(line, RESULTS)
            print(f"{name} seed {seed}: {line[case.metric]}, target {case.target}, {line['cpu_seconds']} s", flush=True)


if __name__ == "__main__":
    main()
