"""When answers leave a site: on a public schedule, so that reply times say nothing about its records.

Before a site accepts an invitation it rehearses: it answers a few questions on random images of the declared number,
shape and classes, and takes the time. A real answer then waits for the end of its slot, which is a multiple of that
time; one that takes longer waits for the end of the next slot. What a server can still see: that an answer took more
than a slot (docs/sharp_edges.md).
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
from veilset.methods.base import Context
from veilset.methods.sanitized_gan.config import SanitizedGanPlan
from veilset.methods.sanitized_gan.method import open_critics
from veilset.methods.sanitized_gan.rounds import Rounds
from veilset.pipeline.federated.proposal import Questions
from veilset.privacy.ledger import Ledger
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session
from veilset.privacy.vault import PublicFacts, Vault

_SAFETY = 2.0
_TENTH = 0.1  # slots are whole tenths of a second


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """Seconds on random images: to read all records once, and to answer a warm question."""

    reading: float
    answer: float


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The slots of one plan, all of them public.

    Args:
        warm: seconds from a warm question to its answer.
        cold: the same for a question that lets critics warm up.
        reading: added for the first answer, before which all records are read once.
    """

    warm: float
    cold: float
    reading: float

    @classmethod
    def of(cls, rehearsal: Rehearsal, questions: Questions, answer_every: float | None) -> "Schedule":
        """The slots after a rehearsal; `answer_every`, where the custodian names it, replaces that of a warm one."""
        warm = _rounded_up(_SAFETY * rehearsal.answer) if answer_every is None else answer_every
        longer = math.ceil((questions.updates + questions.warmup) / questions.updates)
        return cls(warm=warm, cold=longer * warm, reading=_rounded_up(_SAFETY * rehearsal.reading))

    @property
    def longest(self) -> float:
        """Seconds that a server has to wait for the first answer."""
        return self.cold + self.reading


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


def rehearse(plan: SanitizedGanPlan, facts: PublicFacts, questions: Questions, seed: int) -> Rehearsal:
    """Answer two questions on random images, as the plan would; nothing private is read and nothing is spent."""
    vault = Vault(_RandomRecords(facts))
    twice = (replace(plan.answers[0], count=2),)
    short = replace(plan, events=twice, answers=twice)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "ledger.jsonl", {"run": "rehearsal", "seed": seed})
        try:
            session = Session(vault, short, ledger, NoiseSource())
            critics = open_critics(short, session, Rounds(plan.settings, facts, Context(seed=seed)))
            seconds = []
            for _ in range(2):
                began = time.perf_counter()
                critics.step(questions.random())
                seconds.append(time.perf_counter() - began)
        finally:
            ledger.close()
    return Rehearsal(reading=max(0.0, seconds[0] - seconds[1]), answer=seconds[1])


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
        joined = b"".join(hashlib.sha256(str(row).encode()).digest() for row in range(self._units))
        return np.frombuffer(joined, np.uint8).reshape(self._units, 32)


def _rounded_up(seconds: float) -> float:
    return max(1, math.ceil(seconds / _TENTH)) * _TENTH
