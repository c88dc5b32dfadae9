"""What the privacy noise costs: its time beside a DP-SGD step of the same network, in one interleaved run.

PYTHONPATH=src python benchmarks/noise.py
"""

import json
import os
import platform
import statistics
import subprocess
import time
from pathlib import Path

import veilset.training  # noqa: F401  (thread settings, before torch)

import torch  # isort: skip

from veilset.dpsgd.clipping import ClippedGradients
from veilset.dpsgd.passes import cross_entropy
from veilset.models import build_network
from veilset.privacy.noise import GRID_BITS, Claim, NoiseSource

RESULTS = Path(__file__).parent / "results" / "noise.jsonl"
NETWORKS = [("convnet", (28, 28, 1), 256, 7), ("wrn", (32, 32, 3), 64, 7), ("resnet18", (32, 32, 3), 64, 4)]


def main() -> None:
    """Measure and append to the results."""
    torch.set_num_threads(2)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    noise, claim = NoiseSource(), Claim(step=2.0**-GRID_BITS, sensitivity=1.0, noise_multiplier=1.0)
    for name, shape, batch, rounds in NETWORKS:
        network = build_network(name, shape=shape, classes=10)
        gradients = ClippedGradients(network, cross_entropy, 1.0)
        inputs, targets = torch.rand(batch, shape[2], shape[0], shape[1]), torch.arange(batch) % 10
        steps, noises = [], []
        for round_number in range(rounds + 1):
            start = time.perf_counter()
            sums = gradients.sum(inputs, targets)
            middle = time.perf_counter()
            total = torch.cat([part.flatten() for part in sums]).div_(claim.step).round_().to(torch.int64)
            noise.release(total, claim)
            if round_number:  # the first round warms up
                steps.append(middle - start)
                noises.append(time.perf_counter() - middle)
        step, drawn = statistics.median(steps), statistics.median(noises)
        line = json.dumps(
            {
                "benchmark": "noise",
                "network": name,
                "parameters": sum(parameter.numel() for parameter in network.parameters()),
                "batch": batch,
                "clipped_sum_ms": round(1000 * step, 1),
                "noise_ms": round(1000 * drawn, 2),
                "noise_share_of_step": round(drawn / (step + drawn), 4),
                "threads": 2,
                "load": round(os.getloadavg()[0], 1),
                "machine": platform.machine(),
                "commit": commit.stdout.strip(),
                "torch": torch.__version__,
            }
        )
        print(line, flush=True)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
