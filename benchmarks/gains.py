"""Gains in accounting that cost nothing: before and after, from the accountant alone. No image is read.

    scripts/bench gains [filter] [batch] [methods] [correlated]

- `filter`: how large a limit an account needs for the same two to sixteen Gaussian runs, judged by the Renyi filter
  (before) and by the Gaussian filter (after). Runs are alike, and the limit is the smallest that takes them all.
- `batch`: the noise of a head teacher's mean gradient beside that of all units in every step, at equal epsilon and
  steps: with 8,192 units (before) and with the batch that the plan chooses (after).
- `methods`: the noise of single releases, at equal epsilon, over the signal of a unit, in the form of before
  and in that of today. What is the same at every epsilon has one line.
- `correlated`: the noise that DP-SGD leaves in averaged weights, beside the least that any release of their gradients'
  sum could have: with independent noise on Poisson samples (before), and with noise correlated over the best number of
  bands (after). docs/notes/index.md says what that means for us.
"""

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from machine import append
from veilset.methods.dpgan.config import DpganSettings
from veilset.methods.pldk.config import PldkSettings
from veilset.methods.shared.class_statistics import public_embedding
from veilset.privacy.accounting import noise_of
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event
from veilset.privacy.filters import fits_account
from veilset.privacy.sharing import budget_of_share
from veilset.privacy.vault import PublicFacts
from veilset.teachers.planning import plan_teacher

RESULTS = Path(__file__).parent / "results" / "gains.jsonl"
DELTA = 1e-5
UNITS = 60_000


def filter_lines() -> list[dict[str, Any]]:
    """The limit that a number of like runs needs, before and after."""
    lines = []
    for epsilon in (0.5, 1.0, 3.0, 10.0):
        whole = noise_of(Event(label="all", noise_multiplier=1.0), Budget(epsilon, DELTA))
        for runs in (2, 16):
            plan = [Event(label="sum", noise_multiplier=whole * math.sqrt(runs))]
            before, after = (_least_limit([plan] * runs, epsilon, knows=knows) for knows in (False, True))
            fields = {"epsilon_in_advance": epsilon, "delta": DELTA, "runs": runs}
            lines.append({"benchmark": "account filter", **fields, "before": before, "after": after})
    return lines


def _least_limit(plans: list[list[Event]], epsilon: float, *, knows: bool) -> float:
    """The smallest epsilon of a limit under which every plan is taken, one after the other, to a tenth of a percent."""
    low, high = epsilon / 2, 2 * epsilon
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        limit = Budget(middle, DELTA)
        taken = all(fits_account(plans[:n], plans[n], limit, knows_gaussians=knows) for n in range(len(plans)))
        low, high = (low, middle) if taken else (middle, high)
    return round(high, 4)


def batch_lines() -> list[dict[str, Any]]:
    """The excess of sampled noise over that of full sums, by the rule of before and by that of today."""
    lines = []
    for units, delta in ((60_000, 1e-5), (160_000, 1e-6), (1_000_000, 1e-7), (10_000_000, 1e-8)):
        facts = PublicFacts(units=units, unit="record", shape=(28, 28, 1), class_names=tuple("0123456789"))
        for epsilon in (1.0, 10.0):
            budget = Budget(epsilon, delta)
            after = plan_teacher(facts, budget).event
            sampled = replace(after, sampling_rate=8192 / units)
            before = replace(sampled, noise_multiplier=noise_of(sampled, budget))
            full = noise_of(Event(label="all", noise_multiplier=1.0), budget) * math.sqrt(after.count)
            fields = {"units": units, "epsilon": epsilon, "delta": delta, "steps": after.count}
            fields |= {"batch": round(after.sampling_rate * units)}
            excess = [round(e.noise_multiplier / e.sampling_rate / full, 3) for e in (before, after)]
            lines.append({"benchmark": "teacher batch", **fields, "before": excess[0], "after": excess[1]})
    return lines


def method_lines() -> list[dict[str, Any]]:
    """What a method's releases ask of the same budget, before and after."""
    lines = []
    for epsilon in (1.0, 10.0):
        budget = Budget(epsilon, DELTA)
        for name, (before, after) in {"dpgan": _asked_once(budget), "pldk": _all_units(budget)}.items():
            fields = {"method": name, "units": UNITS, "epsilon": epsilon, "delta": DELTA}
            lines.append({"benchmark": "method noise", **fields, "before": round(before, 3), "after": round(after, 3)})
    always = {
        "class statistics": (1.0, _public_radius()),
        "paid accuracy": (math.sqrt(0.5), 0.5),
        "dfd B": (2.0, math.sqrt(2)),
    }
    for name, (before, after) in always.items():
        lines.append(
            {"benchmark": "method noise", "method": name, "before": round(before, 3), "after": round(after, 3)}
        )
    return lines


def _asked_once(budget: Budget) -> tuple[float, float]:
    """dpgan: the mean of a linear critic's gradients, remembered over sampled steps; and one sum of them all."""
    config = DpganSettings()
    rate, part = config.batch / UNITS, budget_of_share(budget, 1 - config.teacher_share)
    sampled = noise_of(Event(label="steps", noise_multiplier=1.0, sampling_rate=rate, count=config.steps), part)
    remembered = 2 * config.real_memory - 1  # as many independent steps are as noisy as the running mean
    return sampled / rate / math.sqrt(remembered), noise_of(Event(label="once", noise_multiplier=1.0), part)


def _all_units(budget: Budget) -> tuple[float, float]:
    """pldk: class means seen by each network, over samples of 4,096 units and over all."""
    config, rate = PldkSettings(), 4096 / UNITS
    part = budget_of_share(budget, 1 - config.teacher_share)
    sampled = noise_of(Event(label="sums", noise_multiplier=1.0, sampling_rate=rate, count=config.networks), part)
    return sampled / rate, noise_of(Event(label="sums", noise_multiplier=1.0, count=config.networks), part)


def _public_radius() -> float:
    """merf, dfd, pate: the length of random features around their public mean; they themselves have length 1."""
    facts = PublicFacts(units=UNITS, unit="record", shape=(28, 28, 1), class_names=tuple("0123456789"))
    return public_embedding(facts, random_features=2048, pictures=3000, seed=0).radius


MOMENTUM, AVERAGE_FROM = 0.9, 0.7
# A network teacher, the same work in larger batches, a small batch as in papers, and a head teacher.
RECIPES = ((1024, 400), (4096, 100), (256, 1600), (8192, 600))


def correlated_lines() -> list[dict[str, Any]]:
    """Independent noise and the best bands, in units of the least noise."""
    lines = []
    for batch, steps in RECIPES:
        for epsilon in (1.0, 10.0):
            found = {bands: _left_in_weights(60_000, batch, steps, bands, epsilon) for bands in (1, 2, 4, 8, 16, 32, 58)
                     if bands * batch <= 60_000}  # fmt: skip
            best = min(found, key=found.__getitem__)
            fields = {"units": 60_000, "batch": batch, "steps": steps, "epsilon": epsilon, "delta": DELTA}
            result = {"before": round(found[1], 3), "after": round(found[best], 3), "bands": best}
            lines.append({"benchmark": "correlated noise", **fields, **result})
    return lines


def _left_in_weights(units: int, batch: int, steps: int, bands: int, epsilon: float) -> float:
    """The noise of averaged weights with `bands` bands, over that of one release of the sum of all gradients.

    Banded noise (Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization"): units are shared out over
    `bands` parts, and every step samples from the next part, so that a unit meets steps / bands of them at a rate that
    is `bands` times as large. The strategy is the banded square root of Kalinin and Lampert (2024), columns of length
    one; a step adds row t of C^-1 times independent noise.
    """
    budget = Budget(epsilon, DELTA)
    rate, count = min(1.0, bands * batch / units), math.ceil(steps / bands)
    sigma = noise_of(Event(label="steps", noise_multiplier=1.0, sampling_rate=rate, count=count), budget)
    root = np.cumprod([1.0, *((2 * k - 1) / (2 * k) for k in range(1, steps))])
    root[bands:] = 0
    lags = np.subtract.outer(np.arange(steps), np.arange(steps))
    strategy = np.where(lags >= 0, root[np.abs(lags)], 0.0)
    strategy /= np.linalg.norm(strategy, axis=0)
    momentum = np.where(lags >= 0, (1 - MOMENTUM) * MOMENTUM ** np.abs(lags), 0.0)
    weights = np.tril(np.ones((steps, steps))) @ momentum
    averaged = weights[round(AVERAGE_FROM * steps) :].mean(axis=0)
    noise = sigma / batch * np.linalg.norm(np.linalg.solve(strategy.T, averaged))
    least = noise_of(Event(label="once", noise_multiplier=1.0), budget) / units * averaged.sum()
    return float(noise / least)


KINDS = {"filter": filter_lines, "batch": batch_lines, "methods": method_lines, "correlated": correlated_lines}


def main() -> None:
    """Compute what was asked for and append it to the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="*", default=list(KINDS), help=f"of {', '.join(KINDS)}")
    for kind in parser.parse_args().kind:
        for line in KINDS[kind]():
            append(line, RESULTS)


if __name__ == "__main__":
    main()
