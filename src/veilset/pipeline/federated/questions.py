"""A session without a vault: each of its mechanisms is a question to all sites, and its result is what they say.

Server and sites run the same `fit` of the same method on this session, each with the same agreement, seed and public
images. Where `fit` asks for a noisy sum, a site computes it with its own session, on its own vault, with its own noise
and on its own ledger; the server combines the noised answers, and all of them go on with the combined result. So both
ends know every question without being sent one: no code and no function travels.

What a question depends on is public: the agreement, and results that were noised before they left a site.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from veilset.core.errors import InputError
from veilset.methods.base import MethodPlan
from veilset.privacy.events import Event
from veilset.privacy.mechanisms.dpsgd_steps import ClippedSum, GradientSteps
from veilset.privacy.mechanisms.shard_critics import Critic, Critics, Query
from veilset.privacy.rows import BATCH, PerImage, alone
from veilset.privacy.session import Session
from veilset.privacy.vault import PublicFacts

Answer = Callable[[Session, Event], Tensor]
"""A site's own session and its own event -> its noised sum, paid for, of the question's shape."""

_TRIED = 4
_NUMBERS = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """One noisy sum that all sites are asked for.

    Args:
        event: of the common plan.
        sensitivity: the most that one unit moves the sum, in L2.
        shape: of the sum.
        answer: what a site does; the server cannot, having no session.
        probe: numbers that the same function gives on random pictures, to see that both ends ask the same.
        takes_late: whether the answer to an earlier step still points the right way in a later one.
    """

    event: Event
    sensitivity: float
    shape: tuple[int, ...]
    answer: Answer
    probe: Tensor
    takes_late: bool = False

    @property
    def is_step(self) -> bool:
        """Whether it is one of many."""
        return self.event.count > 1

    def drift(self, probe: Tensor) -> float:
        """How far another end's numbers are from these, in their own length."""
        is_alike = probe.shape == self.probe.shape and probe.is_floating_point()
        if not is_alike or not bool(torch.isfinite(probe).all()):
            return math.inf
        return float((probe - self.probe).norm() / self.probe.norm().clamp_min(1e-6))


class Asker(Protocol):
    """Who settles a question: the server by asking, a site by answering and waiting."""

    def result(self, question: Question) -> Tensor:
        """The combined sum of all sites that count."""


class FederatedSession(Session):
    """A session on the units of all sites, for `fit` alone. It holds no rows; `ensemble` and `shards` are refused."""

    def __init__(self, facts: PublicFacts, plan: MethodPlan, asker: Asker) -> None:
        self.facts, self.plan, self._asker = facts, plan, asker

    def gaussian_sum(
        self, per_image: PerImage, event: Event, *, clip_norm: float, by_class: bool = False, batch: int = BATCH
    ) -> Tensor:
        """As `Session.gaussian_sum`, of each site's units, weighted.

        Privacy: at each site as there, with the site's own event; what is combined is noised already.
        """
        row_of, width = alone(per_image, self.facts, batch)

        def answer(own: Session, paid: Event) -> Tensor:
            return own.gaussian_sum(per_image, paid, clip_norm=clip_norm, by_class=by_class, batch=batch)

        shape = (self.facts.classes, width) if by_class else (width,)
        probe = probe_of(row_of, self.facts)
        return self._asker.result(
            Question(event=event, sensitivity=clip_norm, shape=shape, answer=answer, probe=probe)
        ).double()

    def gradient_steps(self, event: Event, *, clip_norm: float, features: PerImage | None = None) -> "FederatedSteps":
        """As `Session.gradient_steps`: each step is a question."""
        return FederatedSteps(event, self.facts, self._asker, clip_norm=clip_norm, features=features)

    def critics(
        self,
        critic: Critic,
        features: PerImage,
        events: Sequence[Event],
        *,
        critics: int,
        shape: tuple[int, ...],
        clip_norm: float,
    ) -> "FederatedCritics":
        """As `Session.critics`; each site has its share of the critics, on shards of its own units."""
        (event,) = events
        return FederatedCritics(
            critic, features, event, self.facts, self._asker, critics=critics, shape=shape, clip_norm=clip_norm
        )

    def shards(self, count: int, *, partition: str) -> NoReturn:  # noqa: ARG002
        """Refused: a federation's shards are its sites."""
        raise InputError("A federation cannot divide its units into shards: they lie at the sites.")

    def ensemble(self, *_: object, **__: object) -> NoReturn:
        """Refused: what models of shards say is no sum over units."""
        raise InputError("A federation cannot ask models of shards for votes: it has sums over units alone.")

    def records_without_guarantee(self) -> NoReturn:
        """Refused: no record leaves its site."""
        raise InputError("A federation runs no form as published: no record leaves its site.")

    def finish(self) -> None:
        """Nothing is spent here; each site's own ledger says what it spent."""


class FederatedSteps(GradientSteps):
    """The steps of a training whose every noisy sum is combined from the sites'.

    It keeps no state: a run that goes on is given its earlier results again, and follows them anew.
    """

    def __init__(
        self, event: Event, facts: PublicFacts, asker: Asker, *, clip_norm: float, features: PerImage | None
    ) -> None:
        self._event, self._clip_norm, self._steps_left = event, clip_norm, event.count
        self._facts, self._asker, self._images = facts, asker, features
        self._probe, self._nothing = torch.zeros(1), torch.zeros(0, *facts.shape, dtype=torch.uint8)
        if features is not None:
            row_of, width = alone(features, facts)
            self._probe, self._nothing = probe_of(row_of, facts), torch.zeros(0, width)
        self._opened: WeakKeyDictionary[Session, GradientSteps] = WeakKeyDictionary()

    def step(self, clipped_sum: ClippedSum, *, draws: int = 0) -> list[Tensor]:
        """One combined sum. What its parts look like is learnt from a batch of no units, as a Poisson sample may be."""
        labels = torch.zeros(0, dtype=torch.int64)
        parts = clipped_sum(self._nothing, labels, *([torch.zeros(0, draws)] if draws else []))
        sizes = [part.numel() for part in parts]

        def answer(own: Session, paid: Event) -> Tensor:
            steps = self._opened.get(own)
            if steps is None:
                steps = own.gradient_steps(paid, clip_norm=self.clip_norm, features=self._images)
                steps.lease_size = 1  # a site that is killed loses the step that it was at, and no other
                self._opened[own] = steps
            return torch.cat([part.flatten().cpu() for part in steps.step(clipped_sum, draws=draws)])

        asked = Question(
            event=self.event,
            sensitivity=self.clip_norm,
            shape=(sum(sizes),),
            answer=answer,
            probe=self._probe,
            takes_late=True,  # a gradient a few steps old
        )
        result = self._asker.result(asked).float()
        self._steps_left -= 1
        pieces = torch.split(result, sizes)
        return [piece.view(part.shape).to(part.device) for piece, part in zip(pieces, parts, strict=True)]

    def kept(self) -> None:
        """Nothing is kept."""

    @property
    def keeps_now(self) -> bool:
        """Never: there is nothing to keep."""
        return False


class FederatedCritics(Critics):
    """Critics at all sites, asked together at every step."""

    def __init__(
        self,
        critic: Critic,
        features: PerImage,
        event: Event,
        facts: PublicFacts,
        asker: Asker,
        *,
        critics: int,
        shape: tuple[int, ...],
        clip_norm: float,
    ) -> None:
        self.shape, self.clip_norm, self.critics, self.events = shape, clip_norm, critics, [event]
        self._critic, self._features, self._facts, self._asker = critic, features, facts, asker
        self._begun, self._cold = 0, 0
        self._opened: WeakKeyDictionary[Session, Critics] = WeakKeyDictionary()

    def step(self, query: Query) -> Tensor:
        """The combined sum of all critics' answers."""
        # The first question of a run has the batches of critics that have learnt nothing yet.
        self._cold = self._cold or len(query["fakes"])

        def answer(own: Session, paid: Event) -> Tensor:
            opened = self._opened.get(own)
            asked = query
            if opened is None:
                share = max(2, round(self.critics * own.facts.units / self._facts.units))
                opened = own.critics(
                    self._critic, self._features, [paid], critics=share, shape=self.shape, clip_norm=self.clip_norm
                )
                self._opened[own] = opened
                asked = warmed(query, self._cold)
            return opened.step(asked)

        # What critics say of other points says nothing of these, so late answers do not count.
        probe = query["points"].flatten(1)[:_TRIED, :_NUMBERS].double()
        asked = Question(
            event=self.events[0], sensitivity=2 * self.clip_norm, shape=self.shape, answer=answer, probe=probe
        )
        result = self._asker.result(asked).double()
        self._begun += 1
        return result

    def kept(self) -> None:
        """Nothing is kept."""

    def keep(self, state: object) -> None:
        """Nothing is kept."""


def probe_of(row_of: PerImage, facts: PublicFacts) -> Tensor:
    """A few numbers of what a function makes of random pictures: public, small, and the same at both ends."""
    coins = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (_TRIED, *facts.shape), generator=coins, dtype=torch.uint8)
    with torch.no_grad():
        rows = row_of(images, torch.arange(_TRIED) % facts.classes).double()
    mixing = torch.randn(rows.shape[1], _NUMBERS, generator=coins, dtype=torch.float64)
    return rows @ mixing


def warmed(query: Query, batches: int) -> Query:
    """The query with its batches repeated, for critics of a site that was started again: they begin anew."""
    missing = batches - len(query["fakes"])
    if missing <= 0:
        return query
    order = torch.arange(batches) % len(query["fakes"])
    return {**query, "fakes": query["fakes"][order], "fake_labels": query["fake_labels"][order]}
