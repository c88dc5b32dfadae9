"""What a federation costs in utility and in bytes: the same method over 4 and 16 sites, beside one central run.

    scripts/bench federated --method merf [--private mnist] [--sites 1 4 16] [--split even skewed] [--epsilon 1 10]
                            [--seeds 0 1 2] [--preset fast] [--samples 10000]

Each cell appends one JSON line to benchmarks/results/federated.jsonl; a cell that is there already, of today's
versions, is passed over, so a command that was cut off is started again. One site is the central run. The sites' code
is that of `veilset federate`, with its letters as calls within this process: bytes are those of the tensors in them.
Sites declare as many units as they hold. A skewed split gives each site a few classes alone; an even one shares out
units by hash, X-rays by patient. Noise comes from the operating system.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import veilset.training  # noqa: F401  (thread settings, before torch)

from imgsyn import GROUPS, load  # isort: skip
from machine import append  # isort: skip
from versions import is_stale  # isort: skip

from veilset.data.images import ImageSet
from veilset.data.selection import kept, key_of, part_of_each
from veilset.evaluate.utility.students import evaluate_utility
from veilset.pipeline.federated.admission import KEY, make_request
from veilset.pipeline.federated.agreement import Rule
from veilset.pipeline.federated.local import run_locally
from veilset.pipeline.federated.server import draw_agreement
from veilset.pipeline.federated.site import Site
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.vault import Unit, Vault, compared_by_sites
from veilset.release.format import Release
from veilset.release.verify import verify_release

RESULTS = Path(__file__).parent / "results" / "federated.jsonl"
DELTA = 1e-5
PUBLIC = {"imgsyn": {"mnist": "fashion_mnist", "chest_xray_64": None}}
_CELL = ("method", "private", "sites", "split", "epsilon", "seed", "preset", "samples", "student", "limit")
_WAITING = 1e9


def site_of_each(records: ImageSet, sites: int, split: str) -> np.ndarray:
    """The site of each record: by its unit's hash, and where it is skewed, among the sites that hold its class."""
    if split == "even":
        return part_of_each(records, sites, key_of(0, "sites"))
    classes = int(records.labels.max()) + 1
    held = [{site % classes, (7 * site + 3) % classes} for site in range(sites)]
    if sites < classes:
        held = [{label for label in range(classes) if label % sites == site} for site in range(sites)]
    chosen = np.empty(len(records), np.int64)
    for label in range(classes):
        rows = np.flatnonzero(records.labels == label)
        holders = np.array([site for site, labels in enumerate(held) if label in labels])
        chosen[rows] = holders[part_of_each(records.subset(rows), len(holders), key_of(label, "sites"))]
    return chosen


def federated(private: ImageSet, job: Job, sites: int, split: str, unit: Unit, folder: Path) -> tuple[Release, Any]:
    """One release of `sites` sites, each at the epsilon of the job; and what travelled."""
    owner = site_of_each(private, sites, split)
    vaults = [Vault(private.subset(np.flatnonzero(owner == site)), unit=unit) for site in range(sites)]
    requests = [
        make_request(folder / f"s{site}", vault.facts, name=f"s{site}", epsilon=job.epsilon, delta=DELTA)
        for site, vault in enumerate(vaults)
    ]
    public = _public(job.method, private, None)
    rule = Rule(min_sites=sites, step_seconds=_WAITING, sum_seconds=_WAITING, patience=_WAITING)
    agreement = draw_agreement(requests, job, rule, public)
    own = {
        f"s{site}": Site(
            f"s{site}",
            agreement,
            vault,
            key=(folder / f"s{site}" / KEY).read_bytes(),
            workspace=folder / f"s{site}" / "run",
            public=_public(job.method, private, vault),
        )
        for site, vault in enumerate(vaults)
    }
    release, coordinator = run_locally(own, folder, public=public)
    return release, {
        "rounds": coordinator.rounds,
        "bytes_to_a_site": max(coordinator.bytes_sent.values()),
        "bytes_from_a_site": max(coordinator.bytes_received.values()),
        "bytes_in_all": sum(coordinator.bytes_sent.values()) + sum(coordinator.bytes_received.values()),
        "units": [vault.facts.units for vault in vaults],
    }


def measure(cell: dict[str, Any], settings: dict[str, str]) -> dict[str, Any]:
    """Make and verify one release, and train a student on it."""
    private, test = load(cell["private"], validate=False)
    if cell["limit"] is not None:
        private = private.subset(kept(private, cell["limit"] / len(private), key_of(0, "limit")))
    unit: Unit = "group" if cell["private"] in GROUPS else "record"
    job = Job(
        method=cell["method"],
        epsilon=cell["epsilon"],
        delta=DELTA,
        preset=cell["preset"],
        settings=settings,
        samples=cell["samples"],
        seed=cell["seed"],
    )
    clock, processor = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["VEILSET_STATE"] = str(folder / "state")  # accounts of a measurement stay with it
        travelled: dict[str, Any] = {}
        if cell["sites"] == 1:
            vault = Vault(private, unit=unit)
            release = run(vault, job, public=_public(job.method, private, vault), workspace=folder / "run")
        else:
            release, travelled = federated(private, job, cell["sites"], cell["split"], unit, folder)
        release.save(folder / "release")
        found = verify_release(folder / "release")
    if not found.ok:
        raise SystemExit(f"The release does not verify: {found.problems}")
    seconds, cpu_seconds = time.perf_counter() - clock, time.process_time() - processor
    result = evaluate_utility(
        release.images, release.labels, release.soft_labels, release.certificate.facts.classes, test,
        student=cell["student"], seeds=1, first_seed=cell["seed"],
    )  # fmt: skip
    return {
        "benchmark": "federated",
        "scored_on": "test",
        **cell,
        "settings": settings,
        "certified_epsilon": found.epsilon,
        "unit": unit,
        "accuracy": round(100 * result.accuracy, 2),
        "balanced_accuracy": round(100 * result.balanced_accuracy, 2),
        **travelled,
        "seconds": round(seconds),
        "cpu_seconds": round(cpu_seconds),
    }


def cells(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What was asked for and is not there yet."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    there = [line for line in map(json.loads, lines) if not is_stale(line, RESULTS.name)]
    for seed in asked.seeds:
        for sites in asked.sites:
            for split in asked.split if sites > 1 else ["even"]:
                for epsilon in asked.epsilon:
                    cell = {
                        "method": asked.method, "private": asked.private, "sites": sites, "split": split,
                        "epsilon": epsilon, "seed": seed, "preset": asked.preset, "samples": asked.samples,
                        "student": asked.student, "limit": asked.limit,
                    }  # fmt: skip
                    if not any(all(line.get(name) == cell[name] for name in _CELL) for line in there):
                        yield cell


def _public(method: str, private: ImageSet, vault: Vault | None) -> Any:
    """The public images of a method on this data, where it takes any, for a vault or for the server."""
    name = PUBLIC.get(method, {}).get("mnist" if private.shape == (28, 28, 1) else "chest_xray_64")
    if name is None:
        return None
    images, _ = load(name, validate=False)
    return compared_by_sites(images) if vault is None else vault.check_public(images)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="merf")
    parser.add_argument("--private", default="mnist")
    parser.add_argument("--sites", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--split", nargs="+", default=["even", "skewed"])
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 10.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--limit", type=int, help="about so many images in all: bytes are the same, utility is not")
    parser.add_argument("--student", default="convnet")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    asked = parser.parse_args()
    settings = dict(pair.split("=", 1) for pair in asked.set)
    for cell in cells(asked):
        append(measure(cell, settings), RESULTS)


if __name__ == "__main__":
    main()
