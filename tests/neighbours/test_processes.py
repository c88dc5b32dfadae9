"""Two real processes under torchrun, on neighbouring datasets: who works on what changes, and nothing that leaves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve()
METHODS_TRIED = ("merf", "dpgan", "pate", "sanitized_gan")
ON_UNLIKE_PROCESSORS = ("merf", "dpgan")
# What lets one process compute as on an older processor: the same numbers up to the last bits.
OLDER = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}


def _main(folder: Path, methods: list[str], *, unlike: bool) -> None:
    """What each of the processes runs."""
    if unlike and os.environ["RANK"] == "1":
        os.environ.update(OLDER)
    import torch

    from veilset.audit.neighbour_methods import method_neighbours, plain
    from veilset.audit.neighbours import neighbour_run
    from veilset.privacy.processes import join_if_launched, rank_and_size
    from veilset.teachers import fitting

    torch.set_num_threads(1)
    fitting._PICTURES = 1200
    join_if_launched()
    found: dict[str, list[str]] = {}
    for name in methods:
        subject = method_neighbours(name, plain())[0]
        found[subject.name] = [one.what for one in neighbour_run(subject.play, subject.worlds)]
    rank, size = rank_and_size()
    (folder / f"{rank}.json").write_text(json.dumps({"size": size, "found": found}))


@pytest.mark.parametrize(("methods", "how"), [(METHODS_TRIED, "alike"), (ON_UNLIKE_PROCESSORS, "unlike")])
def test_two_processes(tmp_path: Path, methods: tuple[str, ...], how: str) -> None:
    """On unlike processors, too: a unit more must not hand the others to the other one."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(HERE)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [*command, str(tmp_path), how, *methods], capture_output=True, text=True, timeout=500, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in (0, 1):
        seen = json.loads((tmp_path / f"{rank}.json").read_text())
        assert seen["size"] == 2
        assert len(seen["found"]) == len(methods)
        assert not any(seen["found"].values()), seen["found"]


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[3:], unlike=sys.argv[2] == "unlike")
