"""Where a number was measured: what every line of a benchmark file ends with."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from versions import subject_of, versions_of


def machine() -> dict[str, str | int | float]:
    """Processor, threads, load, versions, commit and date."""
    return {
        "load": round(os.getloadavg()[0], 1),
        "threads": torch.get_num_threads(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        "commit": commit(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def commit() -> str:
    """The commit of the code that runs, with `-dirty` where more than results has changed since."""
    described = _git("describe", "--always")
    return described + ("-dirty" if _git("status", "--porcelain", "--", ":/", ":!/benchmarks/results") else "")


def _git(*words: str) -> str:
    found = subprocess.run(["git", *words], capture_output=True, text=True, cwd=Path(__file__).parent)
    return found.stdout.strip()


def append(line: Mapping[str, Any], out: Path) -> None:
    """Show one result and add it to a benchmark file, with the versions and where it was measured."""
    text = json.dumps({**line, "versions": versions_of(subject_of(line, out.name)), **machine()})
    print(text, flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a", encoding="utf-8") as file:
        file.write(text + "\n")
