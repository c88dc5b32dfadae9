"""Critics of disjoint shards: they learn without noise, never leave, and only their clipped, noised gradients do.

GS-WGAN (Chen, Orekondy, Fritz 2020) trains critics on disjoint shards and noises what flows from them into the
generator. A critic keeps its state from visit to visit, so one unit may change everything that the critic of its shard
ever says, and nothing that any other says. Each visit therefore costs the diameter of the ball to which the whole
answer, all of its rows together, is clipped.

`advance` is written for one shard and run over all by `torch.vmap`, so that no shard can see another's rows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from veilset.core.errors import BudgetError, InputError, VeilsetError
from veilset.core.progress import SILENT, Progress
from veilset.core.randomness import derive_seed
from veilset.privacy.distributed import rank_and_size
from veilset.privacy.events import Event
from veilset.privacy.gradients import PerImage
from veilset.privacy.noise import GridSum, NoiseSource
from veilset.privacy.purse import Purse
from veilset.privacy.sampling import shard_of_each
from veilset.privacy.vault import UnitRows

State = Mapping[str, Any]
"""Tensors, by name; the same names and shapes for every critic."""

Query = Mapping[str, Tensor]
"""Public tensors: generated images and the like."""

Advance = Callable[[State, Tensor, Tensor, Tensor, Query], tuple[State, Tensor]]
"""State, feature rows (m, d), labels (m,) and number of rows () of ONE shard, and a query -> its next state, and its
answer. Rows from that number on are padding. It must keep nothing outside the state."""

_READ_AT_ONCE = 500
_NO_ROWS = np.zeros(0, dtype=np.int64)
_NO_LABEL = torch.zeros(1, dtype=torch.int64)
# A hair below 1, so that a clipped answer stays within its ball in spite of rounding.
_JUST_BELOW_ONE = 1 - 2.0**-40


class Critics:
    """The visits of one plan: all critics at every step (one event), or one after the other (an event for each shard).

    Privacy: unit as in the vault; relation add/remove-one; sensitivity 2 `clip_norm` for each visited critic's whole
    answer, and for the sum of all answers, of which one moves; event `steps` Gaussians over the whole vault, or, in
    turn, as many for each shard as it has visits, in parallel; assumes that `features` treats every image alone and
    that `advance` leaves nothing behind but its results. An empty shard and an answer that is not finite count as zero.
    """

    def __init__(
        self,
        start: State,
        advance: Advance,
        features: PerImage,
        events: Sequence[Event],
        *,
        critics: int,
        shape: tuple[int, ...],
        clip_norm: float,
        rows: UnitRows,
        purse: Purse,
        noise: NoiseSource,
        progress: Progress = SILENT,
    ) -> None:
        if not clip_norm > 0:
            raise InputError(f"Expected clip_norm > 0, got {clip_norm} for the critics' answers.")
        if not 2 <= critics <= rows.count:
            raise InputError(
                f"Expected 2 to {rows.count} critics for {rows.count} units, got {critics}. The answer of a single "
                "critic would stand alone against noise that must hide all of it."
            )
        self.shape, self.clip_norm, self.critics = shape, clip_norm, critics
        self.events = list(events)
        self._advance, self._features = advance, features
        self._rows, self._purse, self._noise, self._progress = rows, purse, noise, progress
        self._start: State = start
        self._shards: tuple[Tensor, Tensor, Tensor] | None = None
        self._state: State = {}
        for event in self.events:
            purse.pay_steps(event)
        self._begun = sum(purse.leased(event) for event in self.events)

    @property
    def together(self) -> bool:
        """Whether every critic answers at every step."""
        return self.events[0].shard is None

    @property
    def steps_left(self) -> int:
        """Steps that are still to come."""
        return sum(event.count for event in self.events) - self._begun

    def turn(self) -> tuple[int | None, int]:
        """The shard that is asked next, None for all, and the number of steps before."""
        return None if self.together else self._begun % self.critics, self._begun

    def step(self, query: Query) -> Tensor:
        """Let the critics whose turn it is learn and answer: the noisy sum of their clipped answers."""
        shard, made = self.turn()
        event = self.events[shard or 0]
        if self.steps_left == 0:
            raise BudgetError(f"All {made} steps of {event.label!r} are taken. No data was read.")
        self._purse.ledger.lease(event, 1)
        self._begun += 1
        return self._noised(self._exact_sum(query, shard, made), event, self._noise)

    def keep(self, state: Mapping[str, Any]) -> None:
        """Store what a resumed run goes on from, computed from noisy sums alone. Critics begin anew then."""
        self._purse.keep_state(self.events[0], state)

    def kept(self) -> dict[str, Any] | None:
        """The last state that an earlier part of this run kept."""
        return self._purse.kept_state(self.events[0])

    def _noised(self, total: GridSum, event: Event, noise: NoiseSource) -> Tensor:
        """The sum as it may leave: an answer may move from one end of its ball to the other, two clip norms."""
        released = total.release(noise, event.noise_multiplier, sensitivity=2.0 * self.clip_norm, event=event)
        return released[0].view(self.shape)

    def _exact_sum(self, query: Query, shard: int | None, step: int) -> GridSum:
        """The sum of the clipped answers of all critics, or of the one whose turn it is."""
        if self._shards is None:
            self._shards = self._read_shards()
            count = len(self._shards[2])
            self._state = tree_map(lambda leaf: leaf.expand(count, *leaf.shape).clone(), self._start)
        rank, size = rank_and_size()
        total = GridSum(1, int(np.prod(self.shape)), self.clip_norm)
        if shard is None:
            asked = slice(0, len(self._shards[2]))
        else:
            asked = slice(shard // size, shard // size + (shard % size == rank))
        if asked.start == asked.stop:
            return total
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(int(self._purse.ledger.header.get("seed") or 0), f"critics/{rank}/{step}"))
            every: Any = torch.vmap(self._advance, in_dims=(0, 0, 0, 0, None), randomness="different")
            before = tree_map(lambda leaf: leaf[asked], self._state)
            state, answers = every(before, *(part[asked] for part in self._shards), query)
        for new, old in zip(tree_leaves(state), tree_leaves(self._state), strict=True):
            old[asked] = new.detach()
        if tuple(answers.shape[1:]) != self.shape:
            raise VeilsetError(f"Expected answers of the shape {self.shape}, got {tuple(answers.shape[1:])}.")
        flat = answers.detach().double().flatten(1)
        fine = torch.isfinite(flat).all(dim=1, keepdim=True) & (self._shards[2][asked] > 0)[:, None]
        flat = torch.where(fine, flat, 0.0)
        scale = self.clip_norm * _JUST_BELOW_ONE / flat.norm(dim=1, keepdim=True).clamp(min=self.clip_norm)
        total.add(flat * scale, torch.zeros(len(flat), dtype=torch.int64))
        return total

    @torch.no_grad()
    def _read_shards(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, labels and number of rows of this process's shards, padded to the longest of them."""
        rank, size = rank_and_size()
        # Public and fixed before any record is read; the same seed gives the same shards.
        key = f"{self._purse.ledger.header.get('seed')}/critics".encode()[:64]
        owner = shard_of_each(self._rows, self.critics, key)
        members = [
            np.concatenate([self._rows.of(int(unit)) for unit in np.flatnonzero(owner == shard)] or [_NO_ROWS])
            for shard in range(rank, self.critics, size)
        ]
        sizes = torch.tensor([len(rows) for rows in members])
        width = self._features(torch.zeros(1, *self._rows.records.shape, dtype=torch.uint8), _NO_LABEL).shape[1]
        rows = torch.zeros(len(members), max(1, int(sizes.max())), width)
        labels = torch.zeros(rows.shape[:2], dtype=torch.int64)
        # How many images a shard holds is private; how many shards there are is not.
        with self._progress.task("features for the critics", len(members)) as task:
            for place, own in enumerate(members):
                for start in range(0, len(own), _READ_AT_ONCE):
                    part = own[start : start + _READ_AT_ONCE]
                    images, classes = (torch.from_numpy(values) for values in self._rows.read(part))
                    rows[place, start : start + len(part)] = self._features(images, classes).float()
                    labels[place, start : start + len(part)] = classes
                task.advance()
        return rows, labels, sizes
