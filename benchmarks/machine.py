"""Where a number was measured: what every line of a benchmark file ends with."""

import os
import platform
import subprocess
import time
from pathlib import Path

import torch


def machine() -> dict[str, str | int | float]:
    """Processor, threads, load, versions, commit and date."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return {
        "load": round(os.getloadavg()[0], 1),
        "threads": torch.get_num_threads(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        "commit": found.stdout.strip(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
