"""Thread settings: quotas, the user's word, and their place before torch."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from veilset.training import threads


@pytest.mark.parametrize(
    ("text", "cores"), [("100000 100000", 1), ("50000 100000", 1), ("max 100000", None), ("junk", None)]
)
def test_quota_limits_the_cores(tmp_path, text, cores):
    quota = tmp_path / "cpu.max"
    quota.write_text(text)
    everything = threads.usable_cores(tmp_path / "absent")
    assert everything >= 1
    assert threads.usable_cores(quota) == (everything if cores is None else cores)


def test_thread_count_follows_the_environment(monkeypatch):
    before = torch.get_num_threads()
    try:
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        assert threads.set_thread_count() == 1 == torch.get_num_threads()
        assert threads.set_thread_count(2) == 2 == torch.get_num_threads()
        monkeypatch.delenv("OMP_NUM_THREADS")
        assert threads.set_thread_count() == threads.usable_cores() == torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("given", "expected"), [({}, "PASSIVE 0 False"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE 0 False")]
)
def test_importing_training_sets_the_policy_before_torch(given, expected):
    source = str(Path(__file__).parents[2] / "src")
    code = (
        "import os, sys, veilset.training;"
        "print(os.environ['OMP_WAIT_POLICY'], os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)"
    )
    environment = {"PYTHONPATH": source, "PATH": "/usr/bin"} | given
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == expected
