"""The student's recipe: accuracy of its variants on a validation part of the training images, and the memory layouts.

    PYTHONPATH=src python benchmarks/students.py [--data mnist fashion_mnist] [--layouts]

Trained on the first 10,000 training images, scored on the last 10,000; no test array is read. --layouts compares
the CPU time of a step in the two memory layouts instead, interleaved in one process.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

import veilset.training  # noqa: F401  (thread settings, before torch)

import torch  # isort: skip

from veilset.models import build_network
from veilset.training.classifier import predict, train_classifier
from veilset.training.settings import TrainingConfig

REPOSITORY = Path(__file__).parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results" / "students.jsonl"
DATA = Path(os.environ.get("VEILSET_DATA") or REPOSITORY.parent / "shared" / "data")
VARIANTS = {
    "default": TrainingConfig(),
    "6 epochs": TrainingConfig(epochs=6),
    "6 epochs, no augmentation": TrainingConfig(epochs=6, augmentation=None),
}
LAYOUTS = [("convnet", (28, 28, 1), 128), ("wrn", (32, 32, 3), 32), ("resnet18", (32, 32, 3), 16)]


def accuracy(data: str, variant: str) -> dict[str, Any]:
    """Train one student and score it on the validation images."""
    pack = np.load(DATA / f"{data}.npz")
    images, labels = pack["train_images"][..., None], pack["train_labels"].astype(np.int64)
    network = build_network("convnet", shape=(28, 28, 1), classes=10, seed=0)
    clock, processor = time.perf_counter(), time.process_time()
    train_classifier(network, images[:10_000], labels[:10_000], config=VARIANTS[variant], seed=0)
    seconds, cpu_seconds = time.perf_counter() - clock, time.process_time() - processor
    found = predict(network, images[-10_000:]).argmax(axis=1)
    return {
        "data": data,
        "variant": variant,
        "accuracy": round(float((found == labels[-10_000:]).mean()), 4),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
    }


def layouts(name: str, shape: tuple[int, int, int], batch: int, rounds: int = 7) -> dict[str, Any]:
    """CPU time of a training step, contiguous and channels last in turn."""
    torch.set_num_threads(1)
    height, width, channels = shape
    inputs, targets = torch.rand(batch, channels, height, width), torch.arange(batch) % 10
    times: dict[str, list[float]] = {"contiguous": [], "channels_last": []}
    for _ in range(rounds):
        for layout, form in (("contiguous", torch.contiguous_format), ("channels_last", torch.channels_last)):
            network = build_network(name, shape=shape, classes=10)
            network.to(memory_format=form)  # type: ignore[call-overload]  # torch's stub omits this argument alone
            start = time.process_time()
            torch.nn.functional.cross_entropy(network(inputs.contiguous(memory_format=form)), targets).backward()  # type: ignore[no-untyped-call]
            times[layout].append(time.process_time() - start)
    milliseconds = {layout: round(1000 * statistics.median(values), 1) for layout, values in times.items()}
    ratio = milliseconds["contiguous"] / milliseconds["channels_last"]
    return {"network": name, "batch": batch, "cpu_milliseconds": milliseconds, "contiguous_over_last": round(ratio, 2)}


def main() -> None:
    """Measure and append to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", default=["mnist", "fashion_mnist"])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS))
    parser.add_argument("--layouts", action="store_true")
    arguments = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    about = {"benchmark": "students", "seed": 0, "machine": platform.machine(), "commit": commit.stdout.strip()}
    jobs = (
        (layouts(*job) for job in LAYOUTS)
        if arguments.layouts
        else (accuracy(data, variant) for data in arguments.data for variant in arguments.variants)
    )
    for result in jobs:
        line = json.dumps(about | result | {"load": round(os.getloadavg()[0], 1), "torch": torch.__version__})
        print(line, flush=True)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
