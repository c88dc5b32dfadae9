"""What stands in for noise and for the screen in a neighbour run: it writes down what leaves, and how."""

import hashlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from veilset.core.progress import SILENT, Progress, Task
from veilset.privacy.events import Event
from veilset.privacy.noise import Claim, NoiseSource, Owners

_SLACK = 2
"""Grid steps by which a coordinate's movement may differ: a DP-SGD step rounds its sum once, in each world."""


@dataclass(frozen=True, kw_only=True)
class Sum:
    """An exact sum, in grid steps, and what is claimed of it."""

    total: NDArray[np.int64]
    claim: Claim

    def movement(self, other: "Sum") -> float:
        """How far the sum of the other world lies from this one, in sensitivities: the worst of its parts."""
        apart = (other.total - self.total).reshape(self.claim.parts, -1).astype(np.float64)
        lengths = np.sqrt((apart**2).sum(axis=1)) * self.claim.step
        return float(lengths.max(initial=0.0) / self.claim.sensitivity)

    def moved_like(self, other: "Sum", alone: "Sum", alone_other: "Sum") -> bool:
        """Whether the way to `other` is that from `alone` to `alone_other`, of the same sum in smaller company."""
        apart = (other.total - self.total) - (alone_other.total - alone.total)
        return bool((np.abs(apart) <= _SLACK).all())


class Recorder(NoiseSource):
    """Stands in for the noise in one world; in the second world it repeats what the `first` one was given.

    `keen` counts, by own id, units whose every coin shows True: the unit in question.
    """

    def __init__(self, first: "Recorder | None" = None, keen: Mapping[bytes, int] | None = None) -> None:
        super().__init__(0)
        self.sums: list[Sum] = []
        self.draws: list[str] = []
        self.plan: tuple[Event, ...] = ()  # what was paid for, where that is known
        self._released: list[torch.Tensor] = []
        self._first, self._keen = first, Counter(keen or {})

    def coins(self, count: int, rate: float, owners: Owners | None = None) -> NDArray[np.bool_]:
        """Coins that belong to their units."""
        self.draws.append(f"coins at {rate!r}")
        if rate >= 1.0 or owners is None:
            return super().coins(count, rate)
        seen: Counter[bytes] = Counter()
        shown = np.zeros(count, dtype=np.bool_)
        ids = owners()
        spare = Counter(ids)
        for place, own in enumerate(ids):
            seen[own] += 1
            is_keen = seen[own] > spare[own] - self._keen[own]
            shown[place] = is_keen or self._number(own, seen[own]) < rate
        return shown

    def choices(self, sizes: NDArray[np.int64], owners: Owners | None = None) -> NDArray[np.int64]:
        """Choices that belong to their units."""
        self.draws.append("choices")
        if owners is None:
            return super().choices(sizes)
        drawn = np.array([number for (number,) in self._rows(owners, 1)]).reshape(len(sizes))
        return np.floor(drawn * sizes).astype(np.int64)

    def uniforms(self, count: int, width: int, owners: Owners | None = None) -> torch.Tensor:
        """Numbers that belong to their units."""
        self.draws.append(f"uniforms of width {width}")
        if owners is None:
            return super().uniforms(count, width)
        return torch.from_numpy(np.stack([*self._rows(owners, width), np.zeros(width)])[:count])

    def release(self, total: torch.Tensor, claim: Claim) -> torch.Tensor:
        """Write the exact sum down; give a noisy one back, in both worlds the same."""
        label = claim.event.label if claim.event else "a sum"
        self.draws.append(f"release of {label}, {tuple(total.shape)}, sensitivity {claim.sensitivity!r}")
        place = len(self.sums)
        self.sums.append(Sum(total=total.numpy().copy(), claim=claim))
        if self._first is not None and place < len(self._first._released):
            released = self._first._released[place]
        else:
            released = super().release(total, claim)
        self._released.append(released.clone())
        return released.clone()

    def _number(self, own: bytes, occurrence: int) -> float:
        return float(self._stream_of(own, occurrence).random())

    def _rows(self, owners: Owners, width: int) -> Iterator[NDArray[np.float64]]:
        seen: Counter[bytes] = Counter()
        for own in owners():
            seen[own] += 1
            yield self._stream_of(own, seen[own]).random(width)

    def _stream_of(self, own: bytes, occurrence: int) -> np.random.Generator:
        """What a unit draws at this place of the run. Identical units are told apart by their number alone."""
        key = hashlib.sha256(own + f"/{len(self.draws)}/{occurrence}".encode()).digest()
        return np.random.Generator(np.random.Philox(int.from_bytes(key[:16], "big")))


class Spoken:
    """Prints what a person who waits is told: the name and size of each piece of work, and every note.

    Not how far it is: a bar counts units, and their number is declared in both worlds alike.
    """

    def task(self, label: str, total: int) -> AbstractContextManager[Task]:
        """Say what begins."""
        sys.stdout.write(f"{label}: {total}\n")
        return SILENT.task(label, total)

    def note(self, text: str) -> None:
        """Say it."""
        sys.stdout.write(f"{text}\n")


SPOKEN: Progress = Spoken()
