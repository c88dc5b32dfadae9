"""The distinguishing game, played on the real code: the same private calls with one record more and without it.

A `Subject` is something that spends a plan: a mechanism, a training, a method. It is run once, in a `Rehearsal`: a
session that plays every private call `runs` times over in both worlds, through `Session` and `GradientSteps` as they
are, with fresh noise and coins, and hands one of the results back so that the subject can go on. The functions that the
subject wants summed are thereby the real ones, at the real place of its run. What follows the last private call is
post-processing and is not run.

The score of a run is the log-likelihood ratio of all that it released, which no test beats (Neyman and Pearson 1933).
It needs the noise-free results, which the same code gives with a source of randomness that is scripted. The records
are toys and public, so the auditor may know all of this.

Fixing the path of one run is fair: composition bounds events whose functions are fixed in advance, too.
"""

import contextlib
import itertools
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from veilset.audit.bounds import Family, Scores, lower_bound
from veilset.core.errors import VeilsetError
from veilset.core.records import Images, Labels
from veilset.data.images import ImageSet
from veilset.privacy.events import Event, Plan
from veilset.privacy.ledger import Line
from veilset.privacy.noise import NoiseSource, Owners
from veilset.privacy.session import Session
from veilset.privacy.vault import PublicFacts, Vault

MakeNoise = Callable[[], NoiseSource]


@dataclass(frozen=True, kw_only=True)
class Worlds:
    """Toy records of which the last unit is the one in question, and what is declared public of both vaults.

    `declared` may be far more than there are: both worlds declare the same number, as the relation demands. With
    `groups`, rising numbers, the unit is a group.
    """

    images: Images
    labels: Labels
    classes: int
    declared: int = 1000
    groups: Labels | None = None

    def __post_init__(self) -> None:
        if self._others() == 0:
            raise VeilsetError("Expected at least one record beside the one in question.")

    def vault(self, *, present: bool) -> Vault:
        """The vault with the unit in question, or without it."""
        count = len(self.images) if present else self._others()
        groups = None if self.groups is None else self.groups[:count]
        records = ImageSet(
            self.images[:count], self.labels[:count], self.facts.class_names, groups, may_lack_classes=True
        )
        vault = Vault(records, unit=self.facts.unit)
        vault.facts = self.facts
        return vault

    @property
    def facts(self) -> PublicFacts:
        """What both worlds declare."""
        height, width, channels = self.images.shape[1:]
        return PublicFacts(
            units=self.declared,
            unit="record" if self.groups is None else "group",
            shape=(height, width, channels),
            class_names=tuple(str(label) for label in range(self.classes)),
        )

    def _others(self) -> int:
        """How many records come before those of the unit in question."""
        return len(self.images) - 1 if self.groups is None else int((self.groups != self.groups[-1]).sum())


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is audited: `spend` takes a session and spends `plan` through it, in the worst of `worlds`."""

    name: str
    plan: Plan
    worlds: Worlds
    spend: Callable[[Session], object]
    runs: int = 2000


class MemoryLedger:
    """A ledger that records in memory; thousands of runs would wear out a disk, and its data is nobody's."""

    def __init__(self) -> None:
        self.header = {"run": "audit"}
        self.lines: list[Line] = []

    def spend(self, event: Event) -> int:
        """Record that `event` is spent."""
        return self._append("spend", {"event": event.to_json()})

    def lease(self, event: Event, steps: int, line: int) -> int:
        """Record that steps are about to be taken."""
        return self._append("lease", {"label": event.label, "shard": event.shard, "steps": steps, "line": line})

    def _append(self, kind: str, body: dict[str, Any]) -> int:
        self.lines.append({"sequence": len(self.lines), "kind": kind, "body": body})
        return len(self.lines) - 1


class Scripted(NoiseSource):
    """No noise, and coins as told: shows the exact sum over the others, the record in question, both or none."""

    def __init__(self) -> None:
        super().__init__(0)
        self.others = self.record = True
        self.seen = 0

    def coins(self, count: int, rate: float, owners: Owners | None = None) -> NDArray[np.bool_]:  # noqa: ARG002
        """The scripted coins; the record in question is the last unit of the world that has it."""
        self.seen = count
        shown = np.full(count, self.others)
        shown[-1:] = self.record
        return shown

    def choices(self, sizes: NDArray[np.int64], owners: Owners | None = None) -> NDArray[np.int64]:  # noqa: ARG002
        """Always the first."""
        return 0 * sizes

    def normal(self, count: int) -> torch.Tensor:
        """No noise."""
        return torch.zeros(count, dtype=torch.float64)


def seeded(seed: int) -> MakeNoise:
    """Noise that can be repeated, a stream of its own at every call. For tests and benchmarks."""
    numbers = itertools.count()
    return lambda: NoiseSource(seed, next(numbers))


class PlanSpent(BaseException):
    """Ends a rehearsal when its plan is spent; what would follow is post-processing."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What an audit found: the claim, and the lower bound that the attempt to break it supports."""

    name: str
    claimed_epsilon: float
    lower_bound: float
    lower_bound_by_rates: float
    delta: float
    confidence: float
    runs: int
    seconds: float

    @property
    def contradicted(self) -> bool:
        """Whether the claim is refuted at the stated confidence."""
        return self.lower_bound > self.claimed_epsilon

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON-ready data."""
        return asdict(self) | {"contradicted": self.contradicted}


def play(subject: Subject, runs: int, make_noise: MakeNoise = NoiseSource) -> Scores:
    """The scores of `runs` runs in each world."""
    from veilset.audit.rehearsal import Rehearsal

    rehearsal = Rehearsal(subject, runs, make_noise)
    with contextlib.suppress(PlanSpent):
        subject.spend(rehearsal)
        raise VeilsetError(f"{subject.name} ended without spending its plan, so it was not audited. Report this.")
    return Scores(without=rehearsal.scores[0], present=rehearsal.scores[1])


def audit(
    subject: Subject, *, runs: int | None = None, confidence: float = 0.95, make_noise: MakeNoise = NoiseSource
) -> Finding:
    """Play the game and judge the claim."""
    runs = runs or subject.runs
    return conclude(subject.name, lambda: (play(subject, runs, make_noise), subject.plan), runs, confidence)


def confidence_of_each(confidence: float, audits: int) -> float:
    """What each of several audits must be sure of, so that all of them together are sure to `confidence`."""
    return 1 - (1 - confidence) / audits


def conclude(name: str, game: Callable[[], tuple[Scores, Plan]], runs: int, confidence: float) -> Finding:
    """Play `game`, which gives scores and the plan that is claimed, and say what its scores show."""
    start = time.perf_counter()
    scores, plan = game()
    family = Family(plan.events, plan.budget.delta)
    bound = lower_bound(scores, family, confidence)
    return Finding(
        name=name,
        claimed_epsilon=family.epsilon(),
        lower_bound=bound.epsilon,
        lower_bound_by_rates=bound.by_rates,
        delta=plan.budget.delta,
        confidence=confidence,
        runs=runs,
        seconds=time.perf_counter() - start,
    )
