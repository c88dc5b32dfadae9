"""kill -9 at random moments: the ledger never shows less than was used, and no half release exists."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

KILLS = 120
WHOLE_RUNS = 2
SUMS = 20
HERE = Path(__file__).resolve()


def _job(folder: Path) -> None:
    """A whole run in a forked child: each sum reads the vault once and leaves a mark before it gets a row."""
    import numpy as np

    from veilset.data.images import ImageSet
    from veilset.pipeline.job import Job
    from veilset.pipeline.run import run
    from veilset.privacy.account import Account
    from veilset.privacy.vault import Vault

    class Marked(ImageSet):
        def read(self, rows: np.ndarray) -> np.ndarray:
            with (folder / "used").open("ab") as file:
                file.write(b"x")
                file.flush()
                os.fsync(file.fileno())
            return super().read(rows)

    images = np.random.default_rng(0).integers(0, 256, (99, 16, 16, 1), dtype=np.uint8)  # one read a sum
    vault = Vault(Marked(images, np.arange(99) % 3))
    job = Job(method="tiny", epsilon=5.0, settings={"sums": str(SUMS)}, samples=60)
    account = Account(folder / "account.sqlite")
    release = run(vault, job, workspace=folder / "run", account=account)
    release.save(folder / "release")


def _wait_for_reads(used: Path, reads: int, until: float) -> None:
    while time.monotonic() < until and not (used.exists() and used.stat().st_size >= reads):
        time.sleep(0.0002)


def _main(folder: Path) -> None:
    """Load everything once, then fork, kill and look, many times."""
    sys.path.insert(0, str(HERE.parent.parent / "support"))
    import torch

    from veilset.methods import METHODS
    from veilset.privacy.account import Account
    from veilset.privacy.ledger import check_chain, read_ledger
    from veilset.release.verify import verify_release

    torch.set_num_threads(1)
    METHODS._targets["tiny"] = "tiny_method:Tiny"
    coins = random.Random(0)
    whole, outcomes = 0.0, {"before": 0, "reading": 0, "released": 0}
    for number in range(WHOLE_RUNS + KILLS):
        place = folder / str(number)
        place.mkdir()
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            _job(place)
            os._exit(0)
        if number < WHOLE_RUNS:  # the last of these shows how long one takes when everything is warm
            assert os.waitpid(child, 0)[1] == 0
            whole = time.monotonic() - started
        else:
            if number % 2:  # a moment of the clock
                time.sleep(coins.random() * whole * 1.1)
            else:  # a moment among the reads, however fast this machine is
                _wait_for_reads(place / "used", coins.randint(1, SUMS - 1), until=started + 10 * whole)
                time.sleep(coins.random() * whole / (2 * SUMS))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        used = len((place / "used").read_bytes()) if (place / "used").exists() else 0
        ledger = place / "run" / "ledger.jsonl"
        spent = check_chain(read_ledger(ledger)) if ledger.exists() and ledger.stat().st_size else []
        assert len(spent) >= used, f"{used} reads, but {len(spent)} events in the ledger"
        reserved = Account(place / "account.sqlite").reservations
        assert used == 0 or len(reserved) == 1, "data was read without a reservation"
        if (place / "release").exists():
            assert verify_release(place / "release").ok, "a half release"
        outcomes["released" if (place / "release").exists() else "reading" if used else "before"] += 1
    sys.stdout.write(json.dumps(outcomes))


@pytest.mark.slow
def test_kill_at_random_moments(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(HERE), str(tmp_path)], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes = json.loads(done.stdout)
    assert sum(outcomes.values()) == WHOLE_RUNS + KILLS
    assert outcomes["reading"] >= 10, f"the kills missed the interesting part: {outcomes}"


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
