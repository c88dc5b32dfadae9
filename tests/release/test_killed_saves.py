"""A save that is killed leaves a whole release or none."""

import itertools
import os
import random
import shutil
import signal
import time

from veilset.release.verify import verify_release


def _save_until_killed(release, folder):
    """Fork a child that saves releases one after another."""
    child = os.fork()
    if child == 0:
        try:
            for number in itertools.count():
                release.save(folder / f"release-{number}")
        finally:
            os._exit(1)
    return child


def test_a_killed_save_leaves_no_half_release(make):
    release = make.release(samples=3000)
    delays = random.Random(0)
    half = 0
    for attempt in range(40):
        folder = make.folder / f"attempt-{attempt}"
        folder.mkdir()
        child = _save_until_killed(release, folder)
        time.sleep(delays.uniform(0.002, 0.06))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for path in folder.iterdir():
            if path.name.startswith("."):
                half += 1
            else:
                outcome = verify_release(path)
                assert outcome.ok, outcome.problems
        shutil.rmtree(folder)
    assert half, "no kill came in the middle of a save, so nothing was shown"
