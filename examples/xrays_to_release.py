"""From a folder of X-rays to a release that may be published.

The folder holds PNG files and a labels.csv, which says what each image shows and which patient it is of. A patient may
have several images; the guarantee is for all of them together. The X-rays here are drawn, so that the example runs
anywhere: put your own folder in their place.
"""

import argparse
import csv
import os
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import veilset as vs


def draw_xrays(folder: Path, patients: int = 400) -> None:
    """Write one to three images of each patient: two lungs, and a bright spot in one where there is a finding."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[0:24, 0:24]
    folder.mkdir(parents=True)
    with (folder / "labels.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "label", "patient"])
        for patient in range(patients):
            label = ("normal", "finding")[patient % 2]
            for number in range(random.integers(1, 4)):
                image = 150 + random.normal(0, 8, (24, 24))
                for centre in (7, 16):
                    image -= 90 * np.exp(-(((x - centre) / 3) ** 2) - ((y - 12) / 7) ** 2)
                if label == "finding":
                    image += 90 * np.exp(-((x - 7) ** 2 + (y - random.integers(9, 16)) ** 2) / 8)
                name = f"{patient:04}-{number}.png"
                Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(folder / name)
                table.writerow([name, label, f"P{patient:04}"])


def run(folder: Path) -> None:
    """Draw the X-rays, make a release of them, save it and check it as anyone could."""
    draw_xrays(folder / "xrays")
    vault = vs.Vault.open(str(folder / "xrays"), unit="group", groups="patient")
    public, budget = vs.open_images("builtin:photos"), vs.Budget(epsilon=4.0, delta=1e-4)
    release = vs.synthesize(vault, method="imgsyn", public=public, budget=budget, preset="fast", samples=300)
    check = vs.verify(release.save(folder / "release"))
    check.raise_if_failed()
    print(f"{vault} became {release}")
    print(f"Verified: epsilon {check.epsilon:.2f} at delta {check.delta:g} for each {check.unit}, {check.relation}.")
    print("Whether a patient is in the data changes any release's chance by at most a factor e^epsilon, plus delta.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="keep everything in this folder (default: a temporary one)")
    with tempfile.TemporaryDirectory() as scratch:
        place = parser.parse_args().out or Path(scratch)
        os.environ.setdefault("VEILSET_STATE", str(place / "state"))  # accounts of drawn images stay with them
        run(place)
