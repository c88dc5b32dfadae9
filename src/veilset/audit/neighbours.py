"""The neighbour run: the same code on two datasets that differ by one unit, and nothing but paid sums may differ.

An audit by noise (game.py) needs thousands of runs and sees a claim that is wrong by a lot. This one needs two runs and
sees the last bit. `Recorder` takes the place of the noise: it writes down every exact sum with its claim, and gives
each unit the same draws in both worlds. The second run gets the results that the first one was given, so that all
that follows from them has to be the same. Then

- each sum may have moved by its claimed sensitivity, and no further;
- a sum of what units give alone moves by the same amount in other company, where the second half of the dataset is
  missing: a unit that changes what others give would need more than its own sensitivity, somewhere;
- of several shards of one partition, the sums of one may have moved at all;
- of steps with correlated noise, one of as many in a row as it has bands may have moved;
- no event releases more sums than it pays for, or with less noise;
- everything else that leaves (files, warnings, printed text, progress, checkpoints, the order of draws and of releases,
  what is left of public random numbers) is equal in every byte.

A run that ends with an error shows nothing, so an error is found, also where it is the same in both worlds.

Coins are coupled: for any fixed draws of the others the unit in question is sampled or not, and where it is not, both
worlds are equal. It is therefore taken whenever it is asked, which is its worst case.
"""

import math
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from veilset.audit.game import Finding, MemoryLedger
from veilset.audit.recorder import SPOKEN, Recorder
from veilset.core.errors import VeilsetError
from veilset.data.images import ImageSet
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.events import LEAST_NOISE, Event, Plan
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session
from veilset.privacy.vault import PublicFacts, Vault

UNBOUNDED = 1e6
"""Stands for an epsilon without bound: something left that tells the two worlds apart for certain."""

_PLACES = ("first", "middle", "last")
_ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What one world showed: its exact sums, which stay inside, and what left besides their noisy forms."""

    recorder: Recorder
    leaves: dict[str, bytes]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where two worlds differ by more than was paid for. `movement` is in sensitivities, or without bound.

    Units that mix leave a claim without its argument; how far it is wrong, this pair of worlds does not say.
    """

    what: str
    movement: float = math.inf
    mixes: bool = False


def differences(without: Trace, present: Trace) -> list[Difference]:
    """All that was not paid for."""
    found = []
    if without.recorder.draws != present.recorder.draws:
        pairs = zip([*without.recorder.draws, "the end"], [*present.recorder.draws, "the end"], strict=False)
        number, drawn = next((n, pair) for n, pair in enumerate(pairs) if pair[0] != pair[1])
        found.append(Difference(what=f"control flow: draw {number} is {drawn[0]!r} without and {drawn[1]!r} with it"))
    moved: dict[str, set[int]] = {}
    turns: dict[Event, list[bool]] = {}
    for number, (one, other) in enumerate(zip(without.recorder.sums, present.recorder.sums, strict=False)):
        if one.total.shape != other.total.shape:
            continue  # the control flow has said so
        movement = one.movement(other)
        event = one.claim.event
        if movement > 1 + 1e-12:
            name = f"sum {number}" if event is None else f"sum {number}, {event.label!r}"
            found.append(Difference(what=f"{name}, moved by {movement:.6g} sensitivities", movement=movement))
        if movement and event is not None and event.partition is not None and event.shard is not None:
            moved.setdefault(event.partition, set()).add(event.shard)
        if event is not None and event.bands > 1:
            turns.setdefault(event, []).append(movement > 0)
    found += [
        Difference(
            what=f"{most} of {event.bands} steps of {event.label!r} in a row moved, one was paid for",
            movement=float(most),
        )
        for event, own in turns.items()
        if (most := max(sum(own[first : first + event.bands]) for first in range(len(own)))) > 1
    ]
    found += [
        Difference(what=f"{len(shards)} shards of {partition!r} moved, one was paid for", movement=float(len(shards)))
        for partition, shards in moved.items()
        if len(shards) > 1
    ]
    found += _unpaid(present.recorder)
    if _ERROR in present.leaves and without.leaves.get(_ERROR) == present.leaves[_ERROR]:
        found.append(Difference(what=f"nothing was tried: {present.leaves[_ERROR].decode()}"))
    for name in sorted(without.leaves.keys() | present.leaves.keys()):
        if without.leaves.get(name) != present.leaves.get(name):
            found.append(Difference(what=f"{name} differs"))
    return found


def mixed(without: Trace, present: Trace, alone: Trace, alone_present: Trace) -> list[Difference]:
    """Sums of units that the unit in question moves by another amount when half of the others are missing."""
    found = []
    recorders = (one.recorder for one in (without, present, alone, alone_present))
    for number, sums in enumerate(zip(*(recorder.sums for recorder in recorders), strict=False)):
        one, other, *smaller = sums
        if one.claim.of_units and len({each.total.shape for each in sums}) == 1 and not one.moved_like(other, *smaller):
            name = f"sum {number}" if one.claim.event is None else f"sum {number}, {one.claim.event.label!r}"
            what = f"{name}, mixes units: the one in question moves it otherwise in other company"
            found.append(Difference(what=what, mixes=True))
    return found


def _unpaid(recorder: Recorder) -> list[Difference]:
    """Sums that left without an event, with less noise than it has, or, where the plan is known, more of them."""
    found = []
    left: Counter[Event] = Counter()
    for number, one in enumerate(recorder.sums):
        event = one.claim.event
        if event is None:
            found.append(Difference(what=f"sum {number} left without an event"))
            continue
        left[event] += one.claim.parts
        if one.claim.noise_multiplier < event.noise_multiplier:
            found.append(Difference(what=f"sum {number}, {event.label!r}, left with less noise than was paid for"))
    paid: Counter[Event] = Counter()
    for event in recorder.plan:
        paid[event] += event.steps
    return found + [
        Difference(what=f"{count} sums of {event.label!r} left, {paid[event]} were paid for")
        for event, count in left.items()
        if recorder.plan and count > paid[event]
    ]


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """A dataset, and a unit that one of the two worlds has besides, at the beginning, in the middle or at the end.

    Both worlds declare the same public facts, as the relation demands.
    """

    records: ImageSet
    unit: ImageSet
    declared: int = 1000
    places: tuple[str, ...] = _PLACES

    def records_of(self, place: str | None) -> ImageSet:
        """The records without the unit, or with it at that place."""
        return self.records if place is None else self._joined(place)

    def in_smaller_company(self) -> "Neighbours":
        """The same unit beside the first half of the other units."""
        owners = np.arange(len(self.records)) if self.records.groups is None else self.records.groups
        units = np.unique(owners)
        kept = np.flatnonzero(np.isin(owners, units[: max(1, len(units) // 2)]))
        return replace(self, records=self.records.subset(kept))

    def sealed(self, records: ImageSet) -> Vault:
        """A vault of these records that declares what both worlds declare."""
        vault = Vault(records, unit=self.facts.unit)
        vault.facts = self.facts
        return vault

    @property
    def facts(self) -> PublicFacts:
        """What both worlds declare."""
        return PublicFacts(
            units=self.declared,
            unit="record" if self.records.groups is None else "group",
            shape=self.records.shape,
            class_names=self.records.class_names,
            findings=self.records.labels.ndim == 2,
        )

    @property
    def keen(self) -> Counter[bytes]:
        """The unit in question, by its own id."""
        if self.unit.groups is None:
            return Counter(bytes(digest) for digest in self.unit.digests())
        return Counter([str(self.unit.groups[0]).encode()])

    def _joined(self, place: str) -> ImageSet:
        cut = {"first": 0, "middle": len(self.records) // 2, "last": len(self.records)}[place]

        def insert(outer: Any, inner: Any) -> Any:
            return np.concatenate([outer[:cut], inner, outer[cut:]])

        groups = None
        if self.records.groups is not None:
            groups = insert(self.records.groups, self.unit.groups)
        return ImageSet(
            insert(self.records.images, self.unit.images),
            insert(self.records.labels, self.unit.labels),
            self.records.class_names,
            groups,
            may_lack_classes=True,
        )


Play = Callable[[ImageSet, NoiseSource, Path], Mapping[str, bytes]]
"""A run on these records with this noise in this workspace -> what leaves, by name."""


def trace(play: Play, records: ImageSet, recorder: Recorder) -> Trace:
    """Run `play` in one world. An error leaves, too: its text is shown to somebody."""
    leaves: dict[str, bytes] = {}
    printed = StringIO()
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        workspace = Path(folder) / "run"
        workspace.mkdir()
        torch.manual_seed(0)
        try:
            with redirect_stdout(printed), redirect_stderr(printed), warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                leaves |= play(records, recorder, workspace)
        except VeilsetError as error:
            leaves[_ERROR] = f"{type(error).__name__}: {error}".replace(folder, "PLACE").encode()
        for path in sorted(workspace.rglob("*")):
            leaves[f"kept {path.relative_to(workspace)}"] = path.read_bytes() if path.is_file() else b""
        text = printed.getvalue() + "".join(f"{one.category.__name__}: {one.message}\n" for one in told)
        leaves["printed text"] = text.replace(folder, "PLACE").encode()
        leaves["torch's random numbers"] = torch.get_rng_state().numpy().tobytes()
    return Trace(recorder=recorder, leaves=leaves)


def neighbour_run(play: Play, worlds: Neighbours) -> list[Difference]:
    """Run `play` without the unit, and with it at each place; then both in smaller company. List what was not paid for.

    Of several places the last is tried in smaller company alone.
    """
    first = Recorder()
    smaller = worlds.in_smaller_company()
    *others, last = worlds.places
    without = trace(play, worlds.records_of(None), first)
    alone = trace(play, smaller.records_of(None), Recorder(first))
    found: list[Difference] = []
    for place in others or [last]:
        present = trace(play, worlds.records_of(place), Recorder(first, worlds.keen))
        found += [replace(one, what=f"{one.what} (unit {place})") for one in differences(without, present)]
    alone_present = trace(play, smaller.records_of(last), Recorder(first, worlds.keen))
    found += [replace(one, what=f"{one.what} (unit {last}, few)") for one in differences(alone, alone_present)]
    return found + mixed(without, present, alone, alone_present)


def session_play(worlds: Neighbours, plan: Plan, spend: Callable[[Session], Mapping[str, bytes] | None]) -> Play:
    """A run of `spend` on a session of its own; the ledger's lines leave, as a certificate shows them."""

    def play(records: ImageSet, noise: NoiseSource, workspace: Path) -> Mapping[str, bytes]:
        ledger = MemoryLedger()
        session = Session(worlds.sealed(records), plan, ledger, noise, workspace=workspace, progress=SPOKEN)
        if isinstance(noise, Recorder):
            noise.plan = plan.events
        leaves = dict(spend(session) or {})
        return leaves | {"ledger": repr(ledger.lines).encode()}

    return play


@dataclass(frozen=True, kw_only=True)
class NeighbourSubject:
    """Something that a neighbour run tries, and the plan that it claims."""

    name: str
    plan: Plan
    play: Play
    worlds: Neighbours = field(repr=False)

    def finding(self) -> Finding:
        """The outcome as an audit's finding: an exact statement about this pair of worlds, not an estimate."""
        found = neighbour_run(self.play, self.worlds)
        claimed = epsilon_of(self.plan.events, self.plan.budget.delta)
        worst = max((one.movement for one in found if not one.mixes), default=math.inf)
        shown = 0.0
        if found:
            shown = UNBOUNDED if math.isinf(worst) else self._priced(worst)
        return Finding(
            name=self.name,
            claimed_epsilon=claimed,
            lower_bound=min(shown, UNBOUNDED),
            lower_bound_by_rates=0.0,
            delta=self.plan.budget.delta,
            confidence=1.0,
            runs=1,
            seconds=0.0,
        )

    def _priced(self, movement: float) -> float:
        """The epsilon that the plan has when each of its sums moves so many sensitivities."""
        noises = [max(event.noise_multiplier / movement, LEAST_NOISE) for event in self.plan.events]
        closer = [replace(e, noise_multiplier=noise) for e, noise in zip(self.plan.events, noises, strict=True)]
        return epsilon_of(closer, self.plan.budget.delta)
