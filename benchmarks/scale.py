"""Large archives and large releases: memory and time of the private side, and units by 1, 2 and 4 processes.

    PYTHONPATH=src python benchmarks/scale.py private [--records 50000 200000 1000000]
    PYTHONPATH=src python benchmarks/scale.py units [--samples 100000]
    PYTHONPATH=src python benchmarks/scale.py plot

`private` opens a run on images of 64 pixels that are made when they are read, and spends a sum by class and a quantile
of a cheap feature: what is measured is reading, clipping, summing and the vault's own bookkeeping. Each size runs in a
process of its own, whose peak memory it is. `units` draws the images of one small merf run again and again. `plot`
draws the newest line of each size into docs/images/scale.svg.
"""

import argparse
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from machine import append
from veilset.core.files import sha256_of
from veilset.core.records import Digests, Images, Labels, Rows
from veilset.core.sealed_rows import SealedRows
from veilset.data.images import ImageSet
from veilset.pipeline.job import Job
from veilset.pipeline.run import publish_for_sampling
from veilset.pipeline.scale.finishing import make_units, units_of_rank
from veilset.pipeline.scale.run_folder import open_run_folder
from veilset.pipeline.scale.units import Unit, make_unit
from veilset.privacy.account import Account
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.opening import opened
from veilset.privacy.vault import Vault

RESULTS = Path(__file__).parent / "results" / "scale.jsonl"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "scale.svg"
SIDE, CLASSES = 64, 10


class MadeWhenRead:
    """Images that are a function of their row number. Labels and digests are held as a reader of files holds them."""

    shape = (SIDE, SIDE, 1)
    groups = None
    class_names = tuple(map(str, range(CLASSES)))
    origin = None

    def __init__(self, count: int) -> None:
        self.rows_read = 0
        self._labels = (np.arange(count) % CLASSES).astype(np.uint8)
        self._digests, self._sources = SealedRows(), SealedRows()
        for row in range(count):
            self._digests.append(hashlib.sha256(row.to_bytes(8, "big")).digest())
            self._sources.append(hashlib.sha256(row.to_bytes(8, "little")).digest())

    @property
    def labels(self) -> Labels:
        """All labels."""
        return self._labels.astype(np.int64)

    def labels_at(self, rows: Rows) -> Labels:
        """The labels of these rows."""
        return self._labels[rows].astype(np.int64)

    def read(self, rows: Rows) -> Images:
        """Pixels by a multiplicative hash of row and place, made for a few images at a time to save memory."""
        self.rows_read += len(rows)
        images = np.empty((len(rows), SIDE * SIDE), np.uint8)
        seeds = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        places = np.arange(SIDE * SIDE, dtype=np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
        for start in range(0, len(rows), 16):
            words = (seeds[start : start + 16, None] ^ places) * np.uint64(0x94D049BB133111EB)
            images[start : start + 16] = words >> np.uint64(56)
        return images.reshape(-1, SIDE, SIDE, 1)

    def digests(self) -> Digests:
        """The ids of the records."""
        return self.digests_at(np.arange(len(self._labels)))

    def digests_at(self, rows: Rows) -> Digests:
        """The ids of these records."""
        return self._digests.at(rows)

    def source_digests_at(self, rows: Rows) -> Digests:
        """What these images are in the source."""
        return self._sources.at(rows)


def pooled(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    """64 numbers of an image: the means of its parts."""
    parts = images.view(len(images), 8, SIDE // 8, 8, SIDE // 8).float().mean(dim=(2, 4))
    return parts.flatten(1) / 255 / 8


def brightness(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """One number of an image."""
    return pooled(images, labels).mean(dim=1, keepdim=True)


def private_side(records: int) -> None:
    """One run, in this process alone."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        os.environ["VEILSET_STATE"] = str(place / "state")  # the account is found by the images, as in a run
        begun = time.perf_counter()
        source = MadeWhenRead(records)
        vault = Vault(source)
        sums, edge = Event(label="class sums", noise_multiplier=4.0), Event(label="edge", noise_multiplier=4.0)
        plan = Plan(budget=Budget(10.0, 1e-8), events=(sums, edge))
        header: dict[str, Any] = {"method": "scale", "plan": [event.to_json() for event in plan.events]}
        with opened(vault, plan, header, workspace=place / "run") as opening:
            ready = time.perf_counter()
            opening.session.gaussian_sum(pooled, sums, clip_norm=1.0, by_class=True)
            opening.session.quantile(brightness, 0.5, np.linspace(0, 0.125, 33).tolist(), edge)
        done = time.perf_counter()
    line = {
        "benchmark": "scale",
        "what": "private side",
        "records": records,
        "pixels": SIDE,
        "rows_read": source.rows_read,
        "opening_seconds": round(ready - begun, 1),
        "sums_seconds": round(done - ready, 1),
        "processor_seconds": round(time.process_time(), 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }
    append(line, RESULTS)


def units(samples: int) -> None:
    """The same images by several numbers of processes, and one unit that is killed and made again."""
    labels = np.arange(2000) % CLASSES
    images = np.random.default_rng(0).integers(0, 256, (2000, 32, 32, 1), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        job = Job(method="merf", epsilon=8.0, preset="smoke", samples=samples)
        account = Account(place / "account.sqlite")
        publish_for_sampling(Vault(ImageSet(images, labels)), job, place / "run", account=account)
        total = max(4, samples // 5000)
        seconds, hashes = {}, {}
        for processes in (1, 2, 4):
            copy = place / f"run-{processes}"
            shutil.copytree(place / "run", copy)
            run, begun = open_run_folder(copy), time.perf_counter()
            make_units(run, units_of_rank(total, 0, 1), processes=processes)
            seconds[processes] = round(time.perf_counter() - begun, 1)
            hashes[processes] = sorted(sha256_of(shard) for shard in (copy / "shards").glob("*.tar"))
        shard = place / "run-1" / "shards" / f"00001-of-{total:05d}.tar"
        whole = sha256_of(shard)
        with shard.open("r+b") as file:
            file.truncate(shard.stat().st_size // 2)
        run = open_run_folder(place / "run-1")
        make_unit(run, run.fitted(), Unit(number=1, total=total))
        line = {
            "benchmark": "scale",
            "what": "units",
            "samples": samples,
            "units": total,
            "seconds": seconds,
            "same_bytes": hashes[1] == hashes[2] == hashes[4],
            "repeated_unit_has_the_same_bytes": sha256_of(shard) == whole,
        }
    append(line, RESULTS)


def plot() -> None:
    """Memory and time against the number of images, from the results alone."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    newest = {line["records"]: line for line in lines if line["what"] == "private side"}
    sizes = sorted(newest)
    mpl.rcParams["svg.hashsalt"] = "scale"  # the same results give the same file
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3))
    left.plot(sizes, [newest[size]["peak_mb"] for size in sizes], "o-", color="#00796b")
    left.set_ylabel("peak memory, MB")
    right.plot(sizes, [newest[size]["processor_seconds"] for size in sizes], "o-", color="#00796b")
    right.set_ylabel("processor seconds")
    for axes in (left, right):
        axes.set_xlabel("private images")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter(lambda size, _: f"{size / 1000:,.0f}k")
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["private", "one", "units", "plot"])
    parser.add_argument("--records", type=int, nargs="+", default=[50_000, 200_000, 1_000_000])
    parser.add_argument("--samples", type=int, default=100_000)
    asked = parser.parse_args()
    if asked.part == "units":
        units(asked.samples)
    elif asked.part == "plot":
        plot()
    elif asked.part == "one":
        private_side(asked.records[0])
    else:
        for records in asked.records:
            subprocess.run([sys.executable, __file__, "one", "--records", str(records)], check=True)
