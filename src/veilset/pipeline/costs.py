"""About how long a run takes and how much memory it needs, from public facts and from runs that were measured.

costs.json lists measured runs: processor seconds and peak memory of one thread. `scripts/bench costs` measures them and
writes the file from results. An estimate starts from the most similar run of the same method and scales its time with
the pixels and the number of released images. That is rough: half or twice as much is no surprise.
"""

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources

from veilset.privacy.vault import PublicFacts

# How time grows: a run has parts that do not depend on the images to be made, and parts that do (benchmarks/costs.py
# prints measured beside estimated time).
_BY_PIXELS, _BY_SAMPLES, _BY_RECORDS = 0.75, 0.5, 0.2
_COPIES = 3  # of all pixels, in memory at once
_ROUGH_FACTOR = 2


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run: what was asked for and what it took."""

    method: str
    preset: str
    records: int
    pixels: int  # height x width x channels
    samples: int
    cpu_seconds: float
    peak_mb: float


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a run will take, about."""

    seconds: float  # of one processor core
    memory_mb: float
    measured: Measured  # the run that it was estimated from

    def sentence(self) -> str:
        """For a person."""
        low, high = (time_text(self.seconds * factor) for factor in (1 / _ROUGH_FACTOR, _ROUGH_FACTOR))
        near = self.measured
        return (
            f"Time: about {time_text(self.seconds)} on one core ({low} to {high}). Memory: about "
            f"{memory_text(self.memory_mb)}. From a measured run of {near.method} ({near.preset}) with "
            f"{near.records:,} records and {near.samples:,} images of {near.pixels:,} values."
        )


def estimate(method: str, preset: str, facts: PublicFacts, samples: int) -> Cost | None:
    """The cost of a run, or None where nothing like it was measured."""
    pixels = math.prod(facts.shape)
    known = [run for run in measured_runs() if run.method == method]
    known = [run for run in known if run.preset == preset] or known
    if not known:
        return None

    def distance(run: Measured) -> float:
        ratios = (pixels / run.pixels, samples / run.samples, facts.units / run.records)
        return sum(weight * abs(math.log(ratio)) for weight, ratio in zip((2, 1, 1), ratios, strict=True))

    near = min(known, key=distance)
    seconds = near.cpu_seconds
    seconds *= max(1.0, pixels / near.pixels) ** _BY_PIXELS * min(1.0, pixels / near.pixels) ** (_BY_PIXELS / 2)
    seconds *= (samples / near.samples) ** _BY_SAMPLES * (facts.units / near.records) ** _BY_RECORDS
    more_values = (facts.units + samples) * pixels - (near.records + near.samples) * near.pixels
    return Cost(
        seconds=seconds, memory_mb=max(near.peak_mb / 2, near.peak_mb + _COPIES * more_values / 2**20), measured=near
    )


@cache
def measured_runs() -> tuple[Measured, ...]:
    """All measured runs."""
    content = (resources.files("veilset.pipeline") / "costs.json").read_text(encoding="utf-8")
    return tuple(Measured(**line) for line in json.loads(content))


def time_text(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 90:
        return f"{max(5, 5 * round(seconds / 5))} seconds"
    if seconds < 5400:
        return f"{round(seconds / 60)} minutes"
    return f"{seconds / 3600:.1f} hours"


def memory_text(megabytes: float) -> str:
    """A size as people say it."""
    return f"{round(megabytes, -2):.0f} MB" if megabytes < 950 else f"{megabytes / 1024:.1f} GB"
