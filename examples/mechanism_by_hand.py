"""A mechanism of the vault used by hand: the average image of each class, with noise.

Write a function that turns each image into a row of numbers. Say in a plan what its sum will cost, let the data's
account reserve it, and ask the session for the sum. It clips, adds and noises in one act; nothing else can be read.
"""

import argparse
import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

import veilset as vs
from veilset.privacy.accounting import calibrate
from veilset.privacy.events import Event, Plan
from veilset.privacy.opening import opened
from veilset.privacy.sources import account_of

LABEL = "pixels of each class"
CLIP_NORM = 8.0  # longer rows are shortened to this, so it is the most that one image moves the sum


def row_of(images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001
    """Your own function: uint8 images (N, H, W, C) to rows (N, d), each of its own image alone."""
    pixels = images.flatten(1).double() / 255
    return torch.cat([pixels, torch.ones(len(images), 1)], dim=1)  # the 1 counts the images of a class


def run(folder: Path) -> None:
    """Plan, reserve, ask, and divide the noisy sums by the noisy counts."""
    vault, budget = vs.Vault.open("builtin:digits:train"), vs.Budget(1.0, 1e-5)
    noise = calibrate(budget, lambda multiplier: [Event(label=LABEL, noise_multiplier=multiplier)])
    event = Event(label=LABEL, noise_multiplier=noise)
    plan = Plan(budget=budget, events=(event,))
    account = account_of(vault, vs.Account(folder / "account.sqlite"))
    header = {"method": "average images", "facts": vault.facts.to_json(), "as_published": False}
    with opened(vault, plan, header, workspace=folder / "run", account=account) as opening:  # from here on it is paid
        sums = opening.session.gaussian_sum(row_of, event, clip_norm=CLIP_NORM, by_class=True)
        lines = opening.finished_lines()  # raises if the plan was not spent as written
    account.end(str(lines[0]["body"]["run"]))
    means = (sums[:, :-1] / sums[:, -1:].clamp(min=1)).reshape(-1, *vault.facts.shape)
    print(f"With noise of deviation {noise * CLIP_NORM:.1f} on every sum, the average digit 1 looks like this:")
    for line in means[1, ::2, ::2, 0].clamp(0, 0.99):
        print("  " + "".join(" .:-=+*#"[int(value * 8)] * 2 for value in line))
    print(f"The account has spent epsilon {account.spent(budget.delta):.2f} at delta {budget.delta:g}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="keep everything in this folder (default: a temporary one)")
    with tempfile.TemporaryDirectory() as scratch:
        place = parser.parse_args().out or Path(scratch)
        os.environ.setdefault("VEILSET_STATE", str(place / "state"))  # nothing is left behind
        run(place)
