"""Critics of disjoint shards: they learn without noise, never leave, and only their clipped, noised gradients do.

GS-WGAN (Chen, Orekondy, Fritz 2020) trains critics on disjoint shards and noises what flows from them into the
generator. A critic keeps its state from visit to visit, so one unit may change everything that the critic of its shard
ever says, and nothing that any other says. Each visit therefore costs the diameter of the ball to which the whole
answer, all of its rows together, is clipped.

A `Critic` is written for one shard and run over all by `torch.vmap`, so that no shard can see another's rows. Nor can
it feel them: every tensor has a public shape, whatever a shard holds; its rows are read in batches of their own, in the
order of their own ids; and which of them are shown is drawn from secret numbers that belong to the shard.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from veilset.core.errors import BudgetError, InputError, VeilsetError
from veilset.core.records import Rows
from veilset.core.settings import require_clip_norm
from veilset.privacy.events import Event
from veilset.privacy.mechanisms.opened import Opened
from veilset.privacy.mechanisms.shard_rows import ShardRows
from veilset.privacy.mechanisms.sums import GridSum
from veilset.privacy.noise import NoiseSource
from veilset.privacy.rows import PerImage, below, require_alone, rows_of
from veilset.privacy.spending import Spending, require_all_units, require_independent

State = Mapping[str, Any]
"""Tensors, by name; the same names and shapes for every critic."""

Query = Mapping[str, Tensor]
"""Public tensors: the batches "fakes" (updates, b, ...) and "fake_labels" (updates, b) to learn from, and others."""


class Critic(Protocol):
    """The critic of ONE shard, as functions that keep nothing outside the state and draw nothing at random."""

    def start(self) -> State:
        """The state of a critic that has seen nothing."""

    def learn(self, state: State, rows: Tensor, known: Tensor, coins: Tensor, fakes: Tensor, labels: Tensor) -> State:
        """The next state, after a batch of `fakes` (b, ...) with `labels` (b,).

        For each of them there is a row of the shard (b, d) of its class, drawn at random, and a number in [0, 1). Where
        `known` (b,) is False, the shard lacks the class, and the row is zero.
        """

    def answer(self, state: State, held: Tensor, query: Query) -> Tensor:
        """What the critic says to a query; `held` (classes,) tells which classes the shard has."""


_READ_AT_ONCE = 512


class Critics:
    """The visits of one plan: all critics at every step (one event), or one after the other (an event for each shard).

    Privacy: unit as in the vault; relation add/remove-one; sensitivity 2 `clip_norm` for each visited critic's whole
    answer, and for the sum of all answers, of which one moves; event `steps` Gaussians over the whole vault, or, in
    turn, as many for each shard as it has visits, in parallel; assumes that the critic leaves nothing behind but its
    results. An empty shard and an answer that is not finite count as zero.
    """

    keep_every = 1
    _begun_before = 0  # by earlier parts of the run

    def __init__(
        self,
        critic: Critic,
        features: PerImage,
        events: Sequence[Event],
        opened: Opened,
        *,
        critics: int,
        shape: tuple[int, ...],
        clip_norm: float,
    ) -> None:
        if opened.spending.place != (None, None):
            raise InputError("A shard cannot be divided again.")
        require_alone(features, opened.facts)
        require_clip_norm(clip_norm, "the critics' answers")
        units = opened.facts.units
        if not 2 <= critics <= units:
            raise InputError(
                f"Expected 2 to {units} critics for {units} units, got {critics}. The answer of a single critic would "
                "stand alone against noise that must hide all of it."
            )
        self.shape, self.clip_norm, self.critics = shape, clip_norm, critics
        self.events = list(events)
        self._critic, self._features, self._facts = critic, features, opened.facts
        self._rows, self._spending = opened.rows, opened.spending
        self._noise, self._progress = opened.noise, opened.progress
        self._shards: ShardRows | None = None
        self._state: State = {}
        self._rank, self._size = opened.rank, opened.size
        spendings = _spendings(self.events, critics, opened.spending)
        for event in self.events:
            require_independent(event)
        self._paid = [own.pay_steps(event) for event, own in zip(self.events, spendings, strict=True)]
        # Of the critics nothing is kept: they begin anew where a run goes on.
        self.keep, self.kept = self._paid[0].keep, self._paid[0].kept
        self._begun = self._begun_before = sum(paid.begun for paid in self._paid)

    @property
    def together(self) -> bool:
        """Whether every critic answers at every step."""
        return self.events[0].shard is None

    @property
    def total(self) -> int:
        """All steps of all events."""
        return sum(event.count for event in self.events)

    @property
    def steps_left(self) -> int:
        """Steps that are still to come."""
        return max(0, self.total - self._begun)

    def turn(self) -> tuple[int | None, int]:
        """The shard that is asked next, None for all, and the number of steps before."""
        return None if self.together else self._begun % self.critics, self._begun

    def step(self, query: Query) -> Tensor:
        """Let the critics whose turn it is learn and answer: the noisy sum of their clipped answers."""
        shard, made = self.turn()
        event = self.events[shard or 0]
        if self.steps_left == 0:
            raise BudgetError(f"All {made} steps of {event.label!r} are taken. No data was read.")
        self._paid[shard or 0].lease(1)
        self._begun += 1
        return self._noised(self._exact_sum(query, shard), event, self._noise)

    @property
    def keeps_now(self) -> bool:
        """Whether this is the moment to `keep` a state: after every `keep_every` steps of this part of the run."""
        return (self._begun - self._begun_before) % self.keep_every == 0

    def _noised(self, total: GridSum, event: Event, noise: NoiseSource) -> Tensor:
        """The sum as it may leave: an answer may move from one end of its ball to the other, two clip norms."""
        released = total.release(noise, event.noise_multiplier, sensitivity=2.0 * self.clip_norm, event=event)
        return released[0].view(self.shape)

    def _exact_sum(self, query: Query, shard: int | None) -> GridSum:
        """The sum of the clipped answers of all critics, or of the one whose turn it is."""
        rank, size = self._rank, self._size
        own = range(rank, self.critics, size)
        if self._shards is None:
            self._shards = self._read_shards(own)
            self._state = tree_map(lambda leaf: leaf.expand(len(own), *leaf.shape).clone(), self._critic.start())
        total = GridSum(1, int(np.prod(self.shape)), self.clip_norm)
        places = range(len(own)) if shard is None else range(shard // size, shard // size + (shard % size == rank))
        if not len(places):
            return total
        asked = slice(places.start, places.stop)
        answers = self._answers(self._shards, query, asked, [f"critic {number}".encode() for number in own[asked]])
        if tuple(answers.shape[1:]) != self.shape:
            raise VeilsetError(f"Expected answers of the shape {self.shape}, got {tuple(answers.shape[1:])}.")
        flat = answers.double().flatten(1)
        fine = torch.isfinite(flat).all(dim=1, keepdim=True) & self._shards.held(asked).any(dim=1, keepdim=True)
        flat = torch.where(fine, flat, 0.0)
        scale = below(self.clip_norm, flat.shape[1]) / flat.norm(dim=1, keepdim=True).clamp(min=self.clip_norm)
        total.add(flat * scale, torch.zeros(len(flat), dtype=torch.int64))
        return total

    def _answers(self, shards: ShardRows, query: Query, asked: slice, names: list[bytes]) -> Tensor:
        """Let the critics `asked`, whose draws belong to `names`, learn and answer; (s, ...)."""
        learn: Any = torch.vmap(self._critic.learn, in_dims=(0, 0, 0, 0, None, None), randomness="error")
        answer: Any = torch.vmap(self._critic.answer, in_dims=(0, 0, None), randomness="error")
        state = tree_map(lambda leaf: leaf[asked], self._state)
        for fakes, labels in zip(query["fakes"], query["fake_labels"], strict=True):
            coins = self._noise.uniforms(len(names), 2 * len(labels), lambda: names)
            rows, known = shards.drawn(asked, labels, coins[:, : len(labels)])
            state = learn(state, rows, known, coins[:, len(labels) :].float(), fakes, labels)
        for new, old in zip(tree_leaves(state), tree_leaves(self._state), strict=True):
            old[asked] = new.detach()
        said: Tensor = answer(state, shards.held(asked), query)
        return said.detach()

    @torch.no_grad()
    def _read_shards(self, own: range) -> ShardRows:
        """The rows of this process's shards."""
        # Public and fixed before any record is read; the same seed gives the same shards.
        key = f"{self._spending.ledger.header.get('seed')}/critics".encode()[:64]
        members = self._rows.of_shards(self.critics, key)
        black = torch.zeros(1, *self._facts.shape, dtype=torch.uint8)
        width = rows_of(self._features, black, torch.zeros(1, dtype=torch.int64)).shape[1]
        shards = []
        # How many images a shard holds is private; how many shards there are is not.
        with self._progress.task("features for the critics", len(own)) as task:
            for shard in own:
                shards.append(self._read_shard(members[shard], width))
                task.advance()
        return ShardRows.of(shards, classes=self._facts.classes, width=width)

    def _read_shard(self, rows: Rows, width: int) -> tuple[Tensor, Tensor]:
        """Features and labels of one shard, in batches that hold nothing else."""
        parts, labels = [torch.zeros(0, width)], torch.from_numpy(self._rows.labels(rows))
        for start in range(0, len(rows), _READ_AT_ONCE):
            images, classes = (torch.from_numpy(side) for side in self._rows.read(rows[start : start + _READ_AT_ONCE]))
            parts.append(rows_of(self._features, images, classes).float())
        return torch.cat(parts), labels


def _spendings(events: Sequence[Event], critics: int, spending: Spending) -> list[Spending]:
    """What each event is paid from, after all of them were found to be what the critics will do.

    One event for the steps of all critics, or one for each critic, of which the turns come round in order.
    """
    steps = sum(event.count for event in events)
    in_turn = [(shard, len(range(shard, steps, critics))) for shard in range(critics)]
    shards = [(event.shard, event.count) for event in events]
    if shards not in ([(None, steps)], in_turn):
        raise BudgetError("Expected one event for all critics, or one for the turns of each. No data was read.")
    partition = events[0].partition
    spendings = [spending] if partition is None else spending.of_shards(partition, critics, "critics")
    for event, own in zip(events, spendings, strict=True):
        require_all_units(event)
        own.require(event)
    return spendings
