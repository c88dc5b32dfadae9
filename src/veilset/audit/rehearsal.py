"""A session that plays every private call many times over, in the world with a record and in the world without it.

See game.py for why. Every play goes through `Session`, `GradientSteps`, `Ensemble` and `Critics` as they are.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from veilset.audit.game import MakeNoise, MemoryLedger, PlanSpent, Scripted, Subject
from veilset.core.errors import VeilsetError
from veilset.privacy.events import Event, Plan
from veilset.privacy.mechanisms.shard_critics import Critic, Critics, Query
from veilset.privacy.mechanisms.shard_votes import Answer, Ensemble, TrainShard
from veilset.privacy.noise import NoiseSource
from veilset.privacy.rows import BATCH
from veilset.privacy.session import ClippedSum, GradientSteps, PerImage, Session

Take = Callable[[], torch.Tensor]
_PATTERNS = ((False, False), (True, False), (False, True), (True, True))  # others sampled, the record sampled


@dataclass(frozen=True, kw_only=True)
class _Private:
    """One private call: its event, its noise, and how it is opened on a session for so many uses."""

    event: Event
    spread: float
    open: Callable[[Session, int], Take]
    steps: bool = False

    def plan(self, times: int) -> tuple[Event, ...]:
        """The events of so many uses: steps share one event, other calls pay one each."""
        return (replace(self.event, count=times),) if self.steps else (self.event,) * times


class Rehearsal(Session):
    """A session in the world with the record that plays each private call `runs` times in both, and adds up scores."""

    def __init__(self, subject: Subject, runs: int, make_noise: MakeNoise) -> None:
        self._vaults = [subject.worlds.vault(present=present) for present in (False, True)]
        super().__init__(self._vaults[1], subject.plan, MemoryLedger(), make_noise())
        self.scores = np.zeros((2, runs))
        self._make_noise = make_noise
        self._partition: tuple[int, str] = (0, "")

    def gaussian_sum(
        self, per_image: PerImage, event: Event, *, clip_norm: float, by_class: bool = False, batch: int = BATCH
    ) -> torch.Tensor:
        """As in a session, rehearsed first."""

        def of(session: Session) -> torch.Tensor:
            return Session.gaussian_sum(session, per_image, event, clip_norm=clip_norm, by_class=by_class, batch=batch)

        spread = event.noise_multiplier * clip_norm
        call = _Private(event=event, spread=spread, open=lambda session, _: lambda: of(session))
        self._rehearse(call)
        released = of(self)
        self._stop_when_spent()
        return released

    def gradient_steps(self, event: Event, *, clip_norm: float, features: PerImage | None = None) -> GradientSteps:
        """As in a session; each step is rehearsed when it is taken."""
        if event.bands > 1:
            raise VeilsetError(
                f"{event.label!r} is of correlated noise, whose steps cannot be played one by one. Its neighbour run "
                "and the test of its blocks take the place of this game."
            )

        def of(session: Session, times: int) -> GradientSteps:
            return Session.gradient_steps(session, replace(event, count=times), clip_norm=clip_norm, features=features)

        return _RehearsedSteps(self, of, of(self, event.count))

    def ensemble(self, train: TrainShard, features: PerImage, *, teachers: int) -> Ensemble:
        """As in a session; each answer is rehearsed when it is asked for."""

        def of(session: Session) -> Ensemble:
            return Session.ensemble(session, train, features, teachers=teachers)

        return _RehearsedEnsemble(self, of)

    def critics(
        self,
        critic: Critic,
        features: PerImage,
        events: Sequence[Event],
        *,
        critics: int,
        shape: tuple[int, ...],
        clip_norm: float,
    ) -> Critics:
        """As in a session; each answer is rehearsed by twins of the critics in both worlds."""

        def of(session: Session) -> Critics:
            return Session.critics(session, critic, features, events, critics=critics, shape=shape, clip_norm=clip_norm)

        return _RehearsedCritics(self, of)

    def shards(self, count: int, *, partition: str) -> list[Session]:
        """As in a session; what a shard is asked is rehearsed on that shard of both worlds."""
        shards = super().shards(count, partition=partition)
        for shard in shards:
            assert isinstance(shard, Rehearsal)
            shard._partition = (count, partition)
        return shards

    def twins(self, of: Callable[[Session], Critics]) -> "list[_Twin]":
        """The critics of both worlds, for all of the plan.

        Their sources give the rows that critics see, the same in both worlds; noise comes from the one of each play.
        """
        worlds = (Session(vault, self.plan, MemoryLedger(), NoiseSource(0)) for vault in self._vaults)
        return [_Twin(of(world)) for world in worlds]

    def play(self, exact: "_Exact", spread: float, takes: Sequence[Callable[[NoiseSource], torch.Tensor]]) -> None:
        """Add to the scores of both worlds what their noisy releases tell."""
        for world, take in enumerate(takes):
            noise = self._make_noise()
            projected = np.array([exact.project(take(noise)) for _ in range(self.scores.shape[1])])
            self.scores[world] += exact.log_ratios(projected, spread)

    def _stop_when_spent(self) -> None:
        if not self._spending.unspent:
            raise PlanSpent

    def _rehearse(self, call: _Private) -> None:
        exact = self._exact(call)
        if exact is None:
            return
        runs = self.scores.shape[1]
        for world in (0, 1):
            take = self._open(world, call, runs, self._make_noise())
            projected = np.array([exact.project(take()) for _ in range(runs)])
            self.scores[world] += exact.log_ratios(projected, call.spread)

    def _exact(self, call: _Private) -> "_Exact | None":
        """What the call would release without noise; None where the record in question makes no difference."""
        scripts = Scripted(), Scripted()
        without, present = (self._open(world, call, len(_PATTERNS), scripts[world]) for world in (0, 1))
        if call.event.sampling_rate == 1.0:
            means = [_flat(without()), _flat(present())]
            return None if np.array_equal(means[0], means[1]) else _Exact(means, 1.0)
        without()
        means = []
        for scripts[1].others, scripts[1].record in _PATTERNS:
            means.append(_flat(present()))
        if scripts[0].seen == scripts[1].seen:
            return None
        if scripts[1].seen > 2:
            raise VeilsetError("Expected at most one other record where records are sampled: its coin is averaged out.")
        return _Exact(means, call.event.sampling_rate)

    def _open(self, world: int, call: _Private, times: int, noise: NoiseSource) -> Take:
        plan = Plan(budget=self.plan.budget, events=call.plan(times))
        session = Session(self._vaults[world], plan, MemoryLedger(), noise)
        if call.event.shard is not None:
            count, partition = self._partition
            session = session.shards(count, partition=partition)[call.event.shard]
        return call.open(session, times)


class _Exact:
    """The noise-free results, and the log-likelihood ratio of noisy ones: a mixture over the coins of both records."""

    def __init__(self, means: list[NDArray[np.float64]], rate: float) -> None:
        self._means, self._rate = np.stack(means), rate
        self._halves = (self._means**2).sum(axis=1) / 2

    def project(self, released: torch.Tensor) -> NDArray[np.float64]:
        """What of a result the ratio needs."""
        product: NDArray[np.float64] = self._means @ _flat(released) - self._halves
        return product

    def log_ratios(self, projected: NDArray[np.float64], spread: float) -> NDArray[np.float64]:
        """One ratio for each row of projections."""
        likelihoods = (projected / spread**2).T
        if self._rate == 1.0:
            ratios: NDArray[np.float64] = likelihoods[1] - likelihoods[0]
            return ratios
        none, other, record, both = likelihoods
        out, inside = math.log1p(-self._rate), math.log(self._rate)
        absent = np.logaddexp(out + none, inside + other)
        sampled = np.logaddexp(out + record, inside + both)
        mixed: NDArray[np.float64] = np.logaddexp(out + absent, inside + sampled) - absent
        return mixed


class _RehearsedSteps(GradientSteps):
    """The steps of a rehearsed event. Shares the state of the real steps, which it takes after rehearsing."""

    def __init__(self, rehearsal: Rehearsal, of: Callable[[Session, int], GradientSteps], real: GradientSteps) -> None:
        self.__dict__ = real.__dict__
        self._rehearsal, self._of = rehearsal, of

    def step(self, clipped_sum: ClippedSum, *, draws: int = 0) -> list[torch.Tensor]:
        """One noisy sum, rehearsed first."""

        def opened(session: Session, times: int) -> Take:
            steps = self._of(session, times)
            return lambda: torch.cat([part.flatten() for part in steps.step(clipped_sum, draws=draws)])

        spread = self.event.noise_multiplier * self.clip_norm
        self._rehearsal._rehearse(_Private(event=self.event, spread=spread, open=opened, steps=True))
        released = super().step(clipped_sum, draws=draws)
        if self.steps_left == 0:
            self._rehearsal._stop_when_spent()
        return released


class _RehearsedEnsemble(Ensemble):
    """Models of shards whose every answer is rehearsed."""

    def __init__(self, rehearsal: Rehearsal, of: Callable[[Session], Ensemble]) -> None:
        self._rehearsal, self._of, self._real = rehearsal, of, of(rehearsal)
        self.teachers = self._real.teachers

    def votes(self, answer: Answer, event: Event, *, classes: int) -> torch.Tensor:
        """As in an ensemble, rehearsed first."""
        return self._ask(event, math.sqrt(2), lambda models: models.votes(answer, event, classes=classes))

    def agreement(self, answer: Answer, event: Event, *, classes: int) -> torch.Tensor:
        """As in an ensemble, rehearsed first."""
        return self._ask(event, 1.0, lambda models: models.agreement(answer, event, classes=classes))

    def gradient(self, answer: Answer, event: Event, *, shape: tuple[int, int], norm_bound: float) -> torch.Tensor:
        """As in an ensemble, rehearsed first."""

        def ask(models: Ensemble) -> torch.Tensor:
            return models.gradient(answer, event, shape=shape, norm_bound=norm_bound)

        return self._ask(event, 2 * norm_bound, ask)

    def signs(self, answer: Answer, event: Event, *, shape: tuple[int, int], keep: int) -> torch.Tensor:
        """As in an ensemble, rehearsed first."""

        def ask(models: Ensemble) -> torch.Tensor:
            return models.signs(answer, event, shape=shape, keep=keep)

        return self._ask(event, 2 * math.sqrt(keep), ask)

    def _ask(self, event: Event, sensitivity: float, ask: Callable[[Ensemble], torch.Tensor]) -> torch.Tensor:
        def opened(session: Session, _: int) -> Take:
            models = self._of(session)
            return lambda: ask(models)

        spread = event.noise_multiplier * sensitivity
        self._rehearsal._rehearse(_Private(event=event, spread=spread, open=opened))
        released = ask(self._real)
        self._rehearsal._stop_when_spent()
        return released


class _Twin(Critics):
    """The critics of one world, whose noise is drawn anew for each play."""

    def __init__(self, real: Critics) -> None:
        self.__dict__ = real.__dict__

    def visited(self, query: Query, shard: int | None, event: Event) -> Callable[[NoiseSource], torch.Tensor]:
        """Let the critics learn and answer once; what is released of it, for any noise."""
        return partial(self._noised, self._exact_sum(query, shard), event)


class _RehearsedCritics(Critics):
    """Critics whose answers are rehearsed by twins in both worlds, who went through the same visits."""

    def __init__(self, rehearsal: Rehearsal, of: Callable[[Session], Critics]) -> None:
        self.__dict__ = of(rehearsal).__dict__
        self._rehearsal, self._twins = rehearsal, rehearsal.twins(of)

    def step(self, query: Query) -> torch.Tensor:
        """The noisy sum of the answers, rehearsed first."""
        shard, _ = self.turn()
        event = self.events[shard or 0]
        takes = [twin.visited(query, shard, event) for twin in self._twins]
        means = [_flat(take(Scripted())) for take in takes]
        if not np.array_equal(means[0], means[1]):
            # The claim is noise of two clip norms times the multiplier; what is played is what the critics add.
            self._rehearsal.play(_Exact(means, 1.0), 2.0 * event.noise_multiplier * self.clip_norm, takes)
        released = super().step(query)
        if self.steps_left == 0:
            self._rehearsal._stop_when_spent()
        return released


def _flat(released: torch.Tensor | list[torch.Tensor]) -> NDArray[np.float64]:
    parts = [released] if isinstance(released, torch.Tensor) else released
    return torch.cat([part.flatten() for part in parts]).double().numpy()
