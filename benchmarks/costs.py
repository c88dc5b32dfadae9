"""What runs take: processor seconds and peak memory of each method on made-up images, each in a process of its own.

    PYTHONPATH=src python benchmarks/costs.py [--methods merf imgsyn] [--preset fast] [--points 0 1]
    PYTHONPATH=src python benchmarks/costs.py --write

The second form writes src/veilset/pipeline/costs.json, from which `veilset plan` and `veilset inspect` tell how long a
run takes, out of the results here and of those runs of the suite mnist_fashion. Made-up images teach nothing; time and
memory do not depend on what is in an image. Each line also has what the file, as it was, would have estimated.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import veilset.training  # noqa: F401  (thread settings, before torch)

from machine import append  # isort: skip

from veilset.data.images import ImageSet
from veilset.methods import METHODS
from veilset.pipeline.costs import estimate
from veilset.pipeline.job import Job
from veilset.pipeline.run import run
from veilset.privacy.vault import Vault

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "costs.jsonl"
FILE = HERE.parent / "src" / "veilset" / "pipeline" / "costs.json"
# Records, pixels a side, channels, released images. The first is the one that others are compared with.
POINTS = ((2000, 28, 1, 1000), (2000, 28, 1, 5000), (2000, 64, 1, 1000), (300, 64, 1, 300), (2000, 64, 3, 1000))
LEFT_OUT = {"evolve", "latent"}  # without public images of the kind there is no typical run


def made_up(records: int, side: int, channels: int) -> ImageSet:
    """Images of two classes that differ in brightness."""
    coins, labels = np.random.default_rng(0), np.arange(records) % 2
    pixels = coins.integers(0, 128, (records, side, side, channels)) + 100 * labels[:, None, None, None]
    return ImageSet(pixels.astype(np.uint8), labels)


def measure(method: str, preset: str, point: int) -> dict[str, Any]:
    """One run, in this process."""
    records, side, channels, samples = POINTS[point]
    vault = Vault(made_up(records, side, channels))
    job = Job(method=method, epsilon=1.0, preset=preset, samples=samples, insecure_seed=0)
    clock, processor = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        made = run(vault, job, workspace=Path(folder) / "run")
    expected = estimate(method, preset, vault.facts, samples)
    return {
        "benchmark": "costs",
        "method": method,
        "preset": preset,
        "records": records,
        "pixels": side * side * channels,
        "samples": len(made),
        "seconds": round(time.perf_counter() - clock, 1),
        "cpu_seconds": round(time.process_time() - processor, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "estimated_seconds": None if expected is None else round(expected.seconds, 1),
    }


def table() -> list[dict[str, Any]]:
    """The newest measured run of each kind, in a fixed order."""
    keys = ("method", "preset", "records", "pixels", "samples", "cpu_seconds", "peak_mb")
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    suite = HERE / "results" / "mnist_fashion" / "results.jsonl"
    for text in suite.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if line["name"] == line["method"]:
            line |= {"preset": "default", "records": 60_000, "pixels": 28 * 28}
            found[tuple(line[key] for key in keys[:5])] = {key: line[key] for key in keys}
    for text in RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else ():
        line = json.loads(text)
        found[tuple(line[key] for key in keys[:5])] = {key: line[key] for key in keys}
    return [found[key] for key in sorted(found)]


def text_of_table() -> str:
    """The content of costs.json."""
    return "[\n" + ",\n".join(f"  {json.dumps(line)}" for line in table()) + "\n]\n"


def main() -> None:
    """Measure, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=[name for name in METHODS if name not in LEFT_OUT])
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--points", nargs="+", type=int, default=list(range(len(POINTS))))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--write", action="store_true", help="write costs.json from the results; measure nothing")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.write:
        FILE.write_text(text_of_table(), encoding="utf-8")
    elif asked.one:
        append(measure(asked.methods[0], asked.preset, asked.points[0]), asked.out)
    else:
        for point in asked.points:
            for method in asked.methods:
                words = ["--one", "--methods", method, "--preset", asked.preset, "--points", str(point)]
                subprocess.run([sys.executable, __file__, *words, "--out", str(asked.out)], check=False)


if __name__ == "__main__":
    main()
