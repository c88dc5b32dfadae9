"""Your own arrays in, your own network out.

Images and labels come from NumPy arrays, a release is made of them, and a network of your own is trained on nothing but
the release. Its score on real images that were held back is for you alone: it is not private, so do not publish it.
"""

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

import veilset as vs
from veilset.data.images import ImageSet


def draw_shapes(count: int, seed: int) -> ImageSet:
    """Noisy images of a bar that stands, lies or leans; any uint8 array (N, H, W) or (N, H, W, 3) will do."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[-8:8, -8:8] + 0.5
    labels = random.integers(0, 3, count)
    bars = np.stack([x, y, (x + y) / 1.4])[labels] - random.uniform(-3, 3, (count, 1, 1))
    images = 200 * np.exp(-((bars / 1.5) ** 2)) + random.normal(30, 15, bars.shape)
    return ImageSet(images.clip(0, 255).astype(np.uint8), labels, ("standing", "lying", "leaning"))


def build_student() -> nn.Module:
    """A network of your own: any module that maps images (N, C, H, W) in 0..1 to one number for each class."""
    return nn.Sequential(nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 6 * 6, 3))


def run(folder: Path) -> None:
    """Make a release of the arrays, train the network on it, and score it on real images."""
    vault = vs.Vault(draw_shapes(2000, seed=0))
    release = vs.synthesize(vault, method="merf", budget=vs.Budget(2.0, 1e-5), preset="fast", samples=2000)
    vs.verify(release.save(folder / "release")).raise_if_failed()
    student = build_student()
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    for _ in range(4):
        for images, targets in DataLoader(release.torch(), batch_size=64, shuffle=True):  # soft labels (N, classes)
            optimizer.zero_grad()
            nn.functional.cross_entropy(student(images), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    test = draw_shapes(1000, seed=1)
    pixels = torch.from_numpy(test.images.copy()).permute(0, 3, 1, 2) / 255
    right = (student(pixels).argmax(dim=1).numpy() == test.labels).mean()
    print(f"{release}\nA network that saw the release alone names {right:.0%} of 1,000 real images (by chance: 33%).")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="keep everything in this folder (default: a temporary one)")
    with tempfile.TemporaryDirectory() as scratch:
        place = parser.parse_args().out or Path(scratch)
        os.environ.setdefault("VEILSET_STATE", str(place / "state"))  # accounts of drawn images stay with them
        run(place)
