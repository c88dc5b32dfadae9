"""What of a plan is still to spend, what was spent already, and the paid results of a run that resumes."""

import copy
import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from veilset.core.errors import BudgetError, InputError
from veilset.core.files import write_whole
from veilset.privacy.events import Event, Plan
from veilset.privacy.processes import RunLedger, bytes_from_first

Place = tuple[str | None, int | None]
"""A partition and the number of one of its shards; None and None for the whole vault."""


class PaidSteps:
    """The steps of an event that one line of the ledger paid for: leased before they are taken, a state kept between.

    Args:
        event: what was paid for.
        ledger: of the run.
        line: that which paid.
        begun: how many steps earlier parts of the run took.
        place: where a state is kept, if anywhere.
        keeps: whether this process writes it.
    """

    def __init__(
        self, event: Event, ledger: RunLedger, line: int, *, begun: int, place: Path | None, keeps: bool
    ) -> None:
        self.begun = begun
        self._event, self._ledger, self._line = event, ledger, line
        self._left = max(0, event.steps - begun)
        self._place, self._keeps = place, keeps

    def lease(self, steps: int) -> None:
        """Record, durably, that `steps` more of the paid steps are about to be taken; never more than were paid for.

        This count is their own: whoever takes the steps cannot take more by a mistake in theirs.
        """
        if not 1 <= steps <= self._left:
            raise BudgetError(
                f"{self._event.label!r}: {self._left} paid steps are left, {steps} were asked. No data was read."
            )
        self._left -= steps
        self._ledger.lease(self._event, steps, self._line)

    def keep(self, state: Mapping[str, Any]) -> None:
        """Store what a resumed run goes on from: tensors and plain data, computed from noisy sums alone."""
        if self._place is not None and self._keeps:
            content = BytesIO()
            torch.save({"state": dict(state)}, content)
            write_whole(self._place, _sealed(self._ledger, content.getvalue(), self._place.name))

    def kept(self) -> dict[str, Any] | None:
        """The last state that an earlier part of this run kept; every process gets that of rank 0."""
        place = self._place
        here = place is not None and place.exists() and self._keeps
        content = bytes_from_first(place.read_bytes() if here and place is not None else b"")
        if not content:
            return None
        assert place is not None
        if _run_of(content) not in (None, str(self._ledger.header["run"])):
            return None  # left behind by another run in this folder
        content = _unsealed(self._ledger, place, content, place.name)
        state: dict[str, Any] = torch.load(BytesIO(content), map_location="cpu", weights_only=True)["state"]
        return state


class Spending:
    """A plan and its ledger. Every mechanism pays here, before it reads.

    It belongs to the whole vault or to one shard of it, and takes the events of that place only: an event of one shard
    that was spent on the whole vault would touch all units and be accounted as if it touched few.
    """

    def __init__(self, plan: Plan, ledger: RunLedger, workspace: Path | None, *, keeps: bool = True) -> None:
        self.ledger = ledger
        self._keeps = keeps  # of several processes one writes to the workspace
        # Not `plan.own`: a plan is a method's, and may be of a kind that says otherwise.
        self.unspent = [event for event in plan.events if event.source is None]
        self._workspace = workspace
        self._earlier = [
            (Event.from_json(line["body"]["event"]), int(line["sequence"]))
            for line in ledger.lines
            if line["kind"] == "spend"
        ]
        self._planned = Counter(self.unspent)
        if Counter(event for event, _ in self._earlier) - self._planned:
            raise BudgetError(
                "The ledger of this run has more lines than its plan has events, so it cannot say what is left. Start "
                "a new run; it needs a new share of the budget. No data was read."
            )
        self._current = -1
        self.place: Place = (None, None)
        self._splits: dict[str, str] = {}
        self._names: list[tuple[str, int | None]] = []

    def of_shards(self, partition: str, count: int, split: str) -> "list[Spending]":
        """The same spending, for the events of each shard of a partition.

        `split` says how units are shared out. A partition that was split in two ways is refused: shards of different
        numbers compose in parallel, and a unit could be in two of them.
        """
        split = f"{count} {split}"
        if self.place != (None, None):
            raise InputError("A shard cannot be divided again.")
        if self._splits.setdefault(partition, split) != split:
            raise BudgetError(f"{partition!r} is divided in another way already. No data was read.")
        shards = [copy.copy(self) for _ in range(count)]  # what is unspent stays one list
        for number, shard in enumerate(shards):
            shard.place = (partition, number)
        return shards

    def pay(self, event: Event, *, sums: int = 1, sampled: bool = False) -> torch.Tensor | None:
        """Spend `event`; where an earlier part of this run paid for it, return what it got.

        The caller says how many sums it releases, and whether it reads a Poisson sample at the rate of the event.
        """
        require_independent(event)
        if event.count != sums:
            raise BudgetError(
                f"{event.label!r} stands for {event.count} sums, and {sums} would be released. No data was read."
            )
        if not sampled:
            require_all_units(event)
        line, is_new = self._spend(event)
        if is_new:
            self._current = line
            return None
        kept = self._place(line)
        if kept is None or not kept.exists():
            raise BudgetError(
                f"The run was stopped while it read the data for {event.label!r}, and that share is spent. "
                "Start a new run; it needs a new share of the budget."
            )
        content = _unsealed(self.ledger, kept, kept.read_bytes(), self._hash_of(line))
        return torch.from_numpy(np.load(BytesIO(content), allow_pickle=False))

    def pay_steps(self, event: Event) -> PaidSteps:
        """Spend an event of any count, whose steps are leased one chunk after another.

        A lease belongs to the line that paid: a plan may hold two events that are alike to the last number.
        """
        line, is_new = self._spend(event)
        leases = [] if is_new else [found["body"] for found in self.ledger.lines if found["kind"] == "lease"]
        begun = sum(int(lease["steps"]) for lease in leases if self._is_of(lease, event, line))
        twins = self._names.count((event.label, event.shard))  # that were paid before it
        self._names.append((event.label, event.shard))
        place = self._place_of_steps(event, twins)
        return PaidSteps(event, self.ledger, line, begun=begun, place=place, keeps=self._keeps)

    def keep(self, result: torch.Tensor) -> torch.Tensor:
        """Store a paid result for a resumed run."""
        place = self._place(self._current)
        if place is not None and self._keeps:
            content = BytesIO()
            np.save(content, result.numpy(), allow_pickle=False)
            write_whole(place, _sealed(self.ledger, content.getvalue(), self._hash_of(self._current)))
        return result

    def require(self, event: Event) -> None:
        """Refuse an event that cannot be spent here; nothing is spent yet."""
        if type(event) is not Event:
            raise BudgetError(f"Expected an event of the plan, got a {type(event).__name__}. No data was read.")
        if event.source is not None:
            raise BudgetError(
                f"{event.label!r} was spent by an earlier run, whose release enters this one. No data was read."
            )
        if (event.partition, event.shard) != self.place:
            asked, here = _place_name((event.partition, event.shard)), _place_name(self.place)
            raise BudgetError(f"{event.label!r} is an event of {asked} and was asked of {here}. No data was read.")
        if event not in self.unspent:
            raise BudgetError(
                f"{event.label!r} (noise multiplier {event.noise_multiplier:g}) is not in the plan or spent already. "
                "No data was read."
            )

    def _spend(self, event: Event) -> tuple[int, bool]:
        """The ledger's line that pays for `event`, and whether it is new: an earlier part of this run may have paid."""
        self.require(event)
        self.unspent.remove(event)
        for position, (paid, sequence) in enumerate(self._earlier):
            if paid == event:
                del self._earlier[position]
                return sequence, False
        # A second line for one event would pay for its steps a second time, once the run resumes.
        body = {"event": event.to_json()}
        written = sum(line["kind"] == "spend" and line["body"] == body for line in self.ledger.lines)
        if written >= self._planned[event]:
            raise BudgetError(f"{event.label!r} is written down as spent already. No data was read.")
        return self.ledger.spend(event), True

    def _hash_of(self, sequence: int) -> str:
        return str(self.ledger.lines[sequence].get("hash", sequence))

    @staticmethod
    def _is_of(lease: Mapping[str, Any], event: Event, line: int) -> bool:
        """Whether a lease is of the event that `line` paid for; older ledgers know labels and shards alone."""
        if "line" in lease:
            return bool(lease["line"] == line)
        return (lease["label"], lease["shard"]) == (event.label, event.shard)

    def _place_of_steps(self, event: Event, twins: int) -> Path | None:
        twin = f"/{twins}" if twins else ""
        name = hashlib.sha256(f"{event.label}/{event.shard}{twin}".encode()).hexdigest()[:16]
        return None if self._workspace is None else self._workspace / f"steps-{name}.pt"

    def _place(self, sequence: int) -> Path | None:
        return None if self._workspace is None else self._workspace / f"paid-{sequence}.npy"


def require_all_units(event: Event) -> None:
    """Refuse an event that claims a sample, for who reads all units."""
    if event.sampling_rate != 1.0:
        raise BudgetError(
            f"{event.label!r} claims a sample at the rate {event.sampling_rate:g}, and all units would be read. "
            "No data was read."
        )


def require_independent(event: Event) -> None:
    """Refuse an event of correlated noise, for who draws noise anew."""
    if event.bands != 1:
        raise BudgetError(
            f"{event.label!r} is of noise over {event.bands} bands, which DP-SGD steps alone have. No data was read."
        )


def _place_name(place: Place) -> str:
    partition, shard = place
    return "the whole vault" if partition is None else f"shard {shard} of {partition!r}"


def _sealed(ledger: RunLedger, content: bytes, belongs_to: str) -> bytes:
    """The content and a last line that says to which run and which line of its ledger it belongs.

    At the end, where readers of arrays do not look: the file stays one that NumPy can open.
    """
    digest = hashlib.sha256(content).hexdigest()
    seal = {"run": str(ledger.header["run"]), "line": belongs_to, "sha256": digest}
    return content + b"\n" + json.dumps(seal).encode()


def _unsealed(ledger: RunLedger, place: Path, stored: bytes, belongs_to: str) -> bytes:
    """What was sealed for this run and this line; anything else is refused."""
    content = stored.rpartition(b"\n")[0]
    if stored != _sealed(ledger, content, belongs_to):
        raise BudgetError(
            f"{place} is damaged or of another run, and what it held is paid for. Put the right file back; without "
            "it, start a new run, which needs a new share of the budget."
        )
    return content


def _run_of(stored: bytes) -> str | None:
    """The run that a sealed file names; None where it is damaged."""
    try:
        return str(json.loads(stored.rpartition(b"\n")[2])["run"])
    except (ValueError, TypeError, KeyError):
        return None
