"""Thread settings that keep torch fast beside other busy processes.

Waiting OpenMP threads spin by default; beside one other busy process the same network then ran at 492 images/s
instead of 2523. The policy is read when torch loads, so `set_wait_policy` must run before the first `import torch`;
it imports nothing heavy and is called when `veilset` is imported.
"""

import os
from pathlib import Path

_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def set_wait_policy() -> None:
    """Let waiting threads sleep, unless the user's environment says otherwise."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")


def usable_cores(quota_file: Path = _CGROUP_QUOTA) -> int:
    """Cores this process may use: by affinity and, in a container, by its quota; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text().split()
        if quota != "max":
            cores = min(cores, int(quota) // int(period))
    except (OSError, ValueError):
        pass  # no such file outside Linux containers; the affinity stands
    return max(1, cores)


def set_thread_count(count: int | None = None) -> int:
    """Tell torch how many threads to use: `count`, else OMP_NUM_THREADS, else the usable cores. Returns it.

    Torch counts the cores of the machine; in a container with a quota that is too many.
    """
    import torch

    if count is None and os.environ.get("OMP_NUM_THREADS", "").isdigit():
        count = int(os.environ["OMP_NUM_THREADS"])
    chosen = max(1, usable_cores() if count is None else count)
    if torch.get_num_threads() != chosen:
        torch.set_num_threads(chosen)
    return chosen
