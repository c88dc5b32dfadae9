"""What of a plan is still to spend, what was spent already, and the paid results of a run that resumes."""

import hashlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from veilset.core.errors import BudgetError
from veilset.core.files import write_whole
from veilset.privacy.distributed import RunLedger, bytes_from_first, rank_and_size
from veilset.privacy.events import Event, Plan


class Purse:
    """A plan and its ledger. Every mechanism pays here, before it reads."""

    def __init__(self, plan: Plan, ledger: RunLedger, workspace: Path | None) -> None:
        self.ledger = ledger
        self.unspent = list(plan.events)
        self._workspace = workspace
        self._earlier = [
            (Event.from_json(line["body"]["event"]), int(line["sequence"]))
            for line in ledger.lines
            if line["kind"] == "spend"
        ]
        self._current = -1

    def pay(self, event: Event) -> torch.Tensor | None:
        """Spend `event`; where an earlier part of this run paid for it, return what it got."""
        earlier = self._take(event)
        if earlier is None:
            self._current = self.ledger.spend(event)
            return None
        kept = self._place(earlier)
        if kept is None or not kept.exists():
            raise BudgetError(
                f"The run was stopped while it read the data for {event.label!r}, and that share is spent. "
                "Start a new run; it needs a new share of the budget."
            )
        return torch.from_numpy(np.load(kept, allow_pickle=False))

    def pay_steps(self, event: Event) -> None:
        """Spend an event whose steps are leased one chunk after another."""
        if self._take(event) is None:
            self.ledger.spend(event)

    def leased(self, event: Event) -> int:
        """How many steps of `event` were begun in earlier parts of this run."""
        leases = [line["body"] for line in self.ledger.lines if line["kind"] == "lease"]
        return sum(int(b["steps"]) for b in leases if (b["label"], b["shard"]) == (event.label, event.shard))

    def keep_state(self, event: Event, state: Mapping[str, Any]) -> None:
        """Store what a resumed run goes on from between the steps of `event`."""
        place = self._place_of_steps(event)
        if place is not None and rank_and_size()[0] == 0:
            content = BytesIO()
            torch.save({"run": str(self.ledger.header["run"]), "state": dict(state)}, content)
            write_whole(place, content.getvalue())

    def kept_state(self, event: Event) -> dict[str, Any] | None:
        """The last state that an earlier part of this run kept; every process gets that of rank 0."""
        place = self._place_of_steps(event)
        here = place is not None and place.exists() and rank_and_size()[0] == 0
        content = bytes_from_first(place.read_bytes() if here and place is not None else b"")
        if not content:
            return None
        stored = torch.load(BytesIO(content), map_location="cpu", weights_only=True)
        state: dict[str, Any] = stored["state"]
        return state if stored["run"] == str(self.ledger.header["run"]) else None

    def keep(self, result: torch.Tensor) -> torch.Tensor:
        """Store a paid result for a resumed run."""
        place = self._place(self._current)
        if place is not None and rank_and_size()[0] == 0:
            content = BytesIO()
            np.save(content, result.numpy(), allow_pickle=False)
            write_whole(place, content.getvalue())
        return result

    def _take(self, event: Event) -> int | None:
        if event not in self.unspent:
            raise BudgetError(
                f"{event.label!r} (noise multiplier {event.noise_multiplier:g}) is not in the plan or spent already. "
                "No data was read."
            )
        self.unspent.remove(event)
        for position, (paid, sequence) in enumerate(self._earlier):
            if paid == event:
                del self._earlier[position]
                return sequence
        return None

    def _place_of_steps(self, event: Event) -> Path | None:
        name = hashlib.sha256(f"{event.label}/{event.shard}".encode()).hexdigest()[:16]
        return None if self._workspace is None else self._workspace / f"steps-{name}.pt"

    def _place(self, sequence: int) -> Path | None:
        return None if self._workspace is None else self._workspace / f"paid-{sequence}.npy"
