"""The same method at three epsilons, and a plot of what each of them buys.

A smaller epsilon protects better and teaches less. The three releases are of the same data, so together they cost more
than the largest of them; the data's account says how much. The accuracies need real test images: they are for you, and
not for release.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import veilset as vs
from veilset.evaluate.utility.students import evaluate_utility
from veilset.report.plots import Point, Series, plot

EPSILONS = (1.0, 3.0, 10.0)
DELTA = 1e-5
# Small, to end soon; leave it out for better images.
SMALL: dict[str, Any] = {"preset": "fast", "settings": {"steps": "60"}, "samples": 500}


def run(folder: Path) -> None:
    """Make a release at each epsilon, score a student of each on real digits, and draw the plot."""
    vault, test = vs.Vault.open("builtin:digits:train"), vs.open_images("builtin:digits:test")
    account = vs.Account(folder / "account.sqlite")
    points = []
    for number, epsilon in enumerate(EPSILONS, start=1):
        budget = vs.Budget(epsilon, DELTA)
        release = vs.synthesize(vault, method="merf", budget=budget, account=account, **SMALL)
        release.save(folder / f"release-{number}")
        released = release.images, release.labels, release.soft_labels
        score = evaluate_utility(*released, len(test.class_names), test, student="scatternet", seeds=1)
        points.append(Point(x=epsilon, y=100 * score.accuracy))
        print(f"epsilon {epsilon:>2g}: a student of the release names {score.accuracy:.0%} of the real digits")
    picture = plot("Digits by merf", "epsilon", [Series(name="merf", points=points)], ticks=EPSILONS)
    (folder / "epsilons.svg").write_text(picture, encoding="utf-8")
    print(f"All three together have spent epsilon {account.spent(DELTA):.2f} at delta {DELTA:g}.")
    print("The plot is epsilons.svg in the folder of --out.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="keep everything in this folder (default: a temporary one)")
    with tempfile.TemporaryDirectory() as scratch:
        place = parser.parse_args().out or Path(scratch)
        os.environ.setdefault("VEILSET_STATE", str(place / "state"))  # nothing is left behind
        run(place)
