"""When answers leave a site: on a public schedule, so that reply times say nothing about its records.

Before the first answer to a sum or a training, a site rehearses: it computes the same on random images of the declared
number, shape and classes, and takes the time. A real answer then waits for the end of its slot, which is a multiple of
that time; one that takes longer waits for the end of the next slot. What a server can still see: that an answer took
more than a slot (docs/explanation/sharp_edges.md).
"""

import hashlib
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from veilset.core.records import Images, Labels, Rows
from veilset.pipeline.federated.questions import Question
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.ledger import Ledger
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session
from veilset.privacy.vault import PublicFacts, Vault

_SAFETY = 2.0
_TENTH = 0.1  # slots are whole tenths of a second


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """Seconds on random images: of the first answer, for which all records may be read, and of those that follow."""

    first: float
    next: float


class Schedule:
    """The slots of one site, all of them public.

    Args:
        facts: what the site declares.
        seed: of the agreement.
        answer_every: seconds from each question to its answer, where the custodian names them.
    """

    def __init__(self, facts: PublicFacts, seed: int, answer_every: float | None = None) -> None:
        self._facts, self._seed, self._answer_every = facts, seed, answer_every
        self._found: dict[str, Rehearsal] = {}

    def slot(self, question: Question, event: Event) -> float:
        """Seconds from a question to its answer; the first time, after a rehearsal."""
        if self._answer_every is not None:
            return self._answer_every
        known = self._found.get(event.label)
        if known is None:
            self._found[event.label] = known = rehearse(question, event, self._facts, self._seed)
            return _rounded_up(_SAFETY * known.first)
        return _rounded_up(_SAFETY * known.next)


class Clock:
    """Holds answers back until their slot ends."""

    def __init__(self, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        self._now, self._sleep = now, sleep

    @contextmanager
    def slot(self, seconds: float, overrun: Callable[[int], None]) -> Iterator[None]:
        """End the block, also one that raises, a whole number of slots after it began; `overrun` hears of more."""
        began = self._now()
        try:
            yield
        finally:
            slots = max(1, math.ceil((self._now() - began) / seconds))
            if slots > 1:
                overrun(slots)
            self._sleep(max(0.0, began + slots * seconds - self._now()))


def rehearse(question: Question, event: Event, facts: PublicFacts, seed: int) -> Rehearsal:
    """Answer a question on random images, twice where it is one of many; nothing private is read, nothing is spent."""
    times = min(2, event.count)
    paid = replace(event, count=times)
    vault = Vault(_RandomRecords(facts))
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "ledger.jsonl", {"run": "rehearsal", "seed": seed})
        try:
            plan = Plan(budget=Budget(1.0, 0.1 / facts.units), events=(paid,))
            session = Session(vault, plan, ledger, NoiseSource())
            seconds = []
            for _ in range(times):
                began = time.perf_counter()
                question.answer(session, paid)
                seconds.append(time.perf_counter() - began)
        finally:
            ledger.close()
    return Rehearsal(first=seconds[0], next=seconds[-1])


class _RandomRecords:
    """As many random images as the facts declare, made when they are read."""

    groups = None

    def __init__(self, facts: PublicFacts) -> None:
        self.shape, self.class_names = facts.shape, facts.class_names
        self.labels: Labels = np.arange(facts.units) % facts.classes
        self._units, self._coins = facts.units, np.random.default_rng(0)

    def read(self, rows: Rows) -> Images:
        """Random pixels."""
        return self._coins.integers(0, 256, (len(rows), *self.shape), dtype=np.uint8)

    def digests(self) -> NDArray[np.uint8]:
        """Hashes of the row numbers."""
        return self.digests_at(np.arange(self._units))

    def digests_at(self, rows: Rows) -> NDArray[np.uint8]:
        """Those of these rows."""
        joined = b"".join(hashlib.sha256(str(row).encode()).digest() for row in rows)
        return np.frombuffer(joined, np.uint8).reshape(len(rows), 32)


def _rounded_up(seconds: float) -> float:
    return max(1, math.ceil(seconds / _TENTH)) * _TENTH
