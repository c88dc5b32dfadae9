"""Every mechanism of a session in its worst case: one record of full length against one that points elsewhere.

Adding a mechanism to `Session` without an entry here fails a test.
"""

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from veilset.audit.game import Subject, Worlds
from veilset.core.registry import unknown_name
from veilset.dpsgd import PrivateTraining, train_private
from veilset.dpsgd.exact import block_sum
from veilset.privacy.accounting import calibrate
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.mechanisms.shard_critics import Query, State
from veilset.privacy.session import Session

_DELTA = 1e-5
_STEPS, _RATE = 5, 0.5
CLIP_NORM = 0.1  # of trainings: every gradient reaches so short a norm, so the record in question has its full length
_SHARDS = 2


def dots(count: int = 2, *, classes: int = 2, declared: int = 1000) -> Worlds:
    """Images of one white pixel each, all in different places, so that their rows are orthogonal and of length 1."""
    images = np.zeros((count, 16, 1), dtype=np.uint8)
    images[np.arange(count), np.arange(count)] = 255
    return Worlds(
        images=images.reshape(count, 4, 4, 1), labels=np.arange(count) % classes, classes=classes, declared=declared
    )


def pixels(images: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001
    """A row for each image: its pixels, between 0 and 1."""
    return images.flatten(1) / 255


def gaussian_sum(epsilon: float) -> Subject:
    """The plain Gaussian: the sum over the whole vault."""
    return _sum("gaussian_sum", epsilon, Event(label="sum", noise_multiplier=1.0))


def gaussian_sum_by_class(epsilon: float) -> Subject:
    """The sum over the whole vault, each record in the row of its class."""
    return _sum("gaussian_sum_by_class", epsilon, Event(label="sum", noise_multiplier=1.0), by_class=True)


def gaussian_sum_sampled(epsilon: float) -> Subject:
    """The sum over a Poisson sample."""
    return _sum("gaussian_sum_sampled", epsilon, Event(label="sum", noise_multiplier=1.0, sampling_rate=_RATE))


def gaussian_sum_groups(epsilon: float) -> Subject:
    """The sum over groups, each of which counts as the average of its images."""
    return _sum("gaussian_sum_groups", epsilon, Event(label="sum", noise_multiplier=1.0), worlds=_groups())


def _groups() -> Worlds:
    """One group of one image, and one of three that are all alike: their average is as long as each."""
    images = dots().images[[0, 1, 1, 1]]
    return Worlds(images=images, labels=np.zeros(4, dtype=np.int64), classes=2, groups=np.array([0, 1, 1, 1]))


def _sum(name: str, epsilon: float, kind: Event, *, by_class: bool = False, worlds: Worlds | None = None) -> Subject:
    plan = priced(epsilon, kind)
    event = plan.events[0]

    def spend(session: Session) -> None:
        session.gaussian_sum(pixels, event, clip_norm=1.0, by_class=by_class)

    return Subject(name=name, plan=plan, worlds=worlds or dots(), spend=spend, runs=6000)


def histogram(epsilon: float) -> Subject:
    """Noisy counts of bins; the record in question has a bin of its own."""
    plan = priced(epsilon, Event(label="counts", noise_multiplier=1.0))
    event = plan.events[0]

    def spend(session: Session) -> None:
        session.histogram(lambda _, labels: labels[:, None], 2, event)

    return Subject(name="histogram", plan=plan, worlds=dots(), spend=spend, runs=6000)


def quantile(epsilon: float) -> Subject:
    """The counts under a noisy quantile; the edge picked from them tells less."""
    plan = priced(epsilon, Event(label="quantile", noise_multiplier=1.0))
    event = plan.events[0]

    def spend(session: Session) -> None:
        session.quantile(lambda _, labels: labels[:, None].double(), 0.5, (0.0, 0.5, 1.0), event)

    return Subject(name="quantile", plan=plan, worlds=dots(), spend=spend, runs=6000)


def shards(epsilon: float) -> Subject:
    """One sum over each of two disjoint shards, in parallel: the record is in one of them."""
    kinds = [Event(label="sum", noise_multiplier=1.0, partition="half", shard=shard) for shard in range(_SHARDS)]
    plan = priced(epsilon, *kinds)

    def spend(session: Session) -> None:
        for part, event in zip(session.shards(_SHARDS, partition="half"), plan.events, strict=True):
            part.gaussian_sum(pixels, event, clip_norm=1.0)

    return Subject(name="shards", plan=plan, worlds=dots(), spend=spend, runs=6000)


def gradient_steps(epsilon: float) -> Subject:
    """Noisy sums of clipped rows over fresh Poisson samples."""
    plan = priced(epsilon, Event(label="steps", noise_multiplier=1.0, sampling_rate=_RATE, count=_STEPS))
    event = plan.events[0]

    def spend(session: Session) -> None:
        steps = session.gradient_steps(event, clip_norm=1.0)
        while steps.steps_left:
            steps.step(lambda images, labels: [block_sum(pixels(images, labels), labels * 0, 1, 1.0)])

    return Subject(name="gradient_steps", plan=plan, worlds=dots(), spend=spend, runs=6000)


def dpsgd_step(epsilon: float) -> Subject:
    """One step of DP-SGD on all records: forward, per-record clipping, noise."""
    return _training("dpsgd_step", epsilon, nn.Linear(16, 2, bias=False), rate=1.0, steps=1)


def dpsgd(epsilon: float) -> Subject:
    """A short DP-SGD training on Poisson samples."""
    return _training("dpsgd", epsilon, nn.Linear(16, 2, bias=False), rate=_RATE, steps=_STEPS)


def dpsgd_network(epsilon: float) -> Subject:
    """One step of DP-SGD through a small convolutional network, i.e. through the whole clipping engine."""
    return _training("dpsgd_network", epsilon, small_network(), rate=1.0, steps=1)


def small_network() -> nn.Module:
    """A convolution, a normalisation and a linear layer, always with the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
        )


def _training(name: str, epsilon: float, model: nn.Module, *, rate: float, steps: int) -> Subject:
    plan = priced(epsilon, Event(label="dp-sgd", noise_multiplier=1.0, sampling_rate=rate, count=steps))
    event = plan.events[0]
    training = PrivateTraining(clip_norm=CLIP_NORM, learning_rate=0.1)

    def spend(session: Session) -> None:
        prepare = (lambda images: images.flatten(1).float() / 255) if isinstance(model, nn.Linear) else None
        train_private(session, copy.deepcopy(model), event, training, prepare=prepare)

    return Subject(name=name, plan=plan, worlds=dots(), spend=spend, runs=4000)


def ensemble_votes(epsilon: float) -> Subject:
    """Votes of models of disjoint shards: one record turns the vote of its model on every query."""
    return _ensemble("ensemble_votes", epsilon, queries=3)


def ensemble_agreement(epsilon: float) -> Subject:
    """The votes of the class with most votes."""
    return _ensemble("ensemble_agreement", epsilon, queries=3)


def ensemble_gradient(epsilon: float) -> Subject:
    """Joint gradients of models of disjoint shards: one record turns the gradient of its model around."""
    return _ensemble("ensemble_gradient", epsilon)


def ensemble_signs(epsilon: float) -> Subject:
    """Signs of the largest entries of such gradients."""
    return _ensemble("ensemble_signs", epsilon)


def _ensemble(name: str, epsilon: float, queries: int = 1) -> Subject:
    plan = priced(epsilon, Event(label="answers", noise_multiplier=1.0, count=queries))
    event = plan.events[0]
    worlds = _one_of_another_class(12)

    def train(rows: Tensor, labels: Tensor) -> float:  # noqa: ARG001
        return -1.0 if bool((labels == 1).any()) else 1.0

    def spend(session: Session) -> None:
        models = session.ensemble(train, pixels, teachers=2)
        if name in ("ensemble_votes", "ensemble_agreement"):
            ask = models.votes if name == "ensemble_votes" else models.agreement
            ask(lambda sign: sign * torch.tensor([[1.0, -1.0]]).expand(queries, 2), event, classes=2)
        elif name == "ensemble_gradient":
            models.gradient(lambda sign: sign * torch.ones(4, 2), event, shape=(4, 2), norm_bound=0.5)
        else:
            models.signs(lambda sign: sign * torch.ones(4, 2), event, shape=(4, 2), keep=3)

    return Subject(name=name, plan=plan, worlds=worlds, spend=spend, runs=4000)


def critics(epsilon: float) -> Subject:
    """Critics of disjoint shards, all asked at every visit: one record turns all that its critic ever says."""
    return _critics("critics", epsilon, [Event(label="critics", noise_multiplier=1.0, count=3)])


def critics_in_turn(epsilon: float) -> Subject:
    """Critics of disjoint shards, asked one after the other; shards compose in parallel."""
    kinds = [
        Event(label="critics", noise_multiplier=1.0, count=2, partition="critics", shard=shard) for shard in range(2)
    ]
    return _critics("critics_in_turn", epsilon, kinds)


def _critics(name: str, epsilon: float, kinds: list[Event]) -> Subject:
    plan = priced(epsilon, *kinds)
    worlds = _one_of_another_class(12)

    query = {
        "points": torch.ones(4, 2),
        "fakes": torch.zeros(1, 1, 2),
        "fake_labels": torch.zeros(1, 1, dtype=torch.int64),
    }

    def spend(session: Session) -> None:
        critics = session.critics(_Turned(), pixels, plan.events, critics=2, shape=(4, 2), clip_norm=0.5)
        while critics.steps_left:
            critics.step(query)

    return Subject(name=name, plan=plan, worlds=worlds, spend=spend, runs=4000)


class _Turned:
    """A critic that turns around when its shard has a record of class 1."""

    def start(self) -> State:
        return {}

    def learn(self, state: State, *_: Tensor) -> State:
        return state

    def answer(self, state: State, held: Tensor, query: Query) -> Tensor:  # noqa: ARG002
        return query["points"] * torch.where(held[1], -1.0, 1.0)


def _one_of_another_class(records: int) -> Worlds:
    """All are of class 0 but the record in question, which turns a whole model: the worst that training could do."""
    labels = (np.arange(records) == records - 1).astype(np.int64)
    return Worlds(images=dots(records).images, labels=labels, classes=2)


def priced(epsilon: float, *kinds: Event) -> Plan:
    """The events with the one noise multiplier that spends epsilon."""
    budget = Budget(epsilon, _DELTA)

    def events(noise: float) -> list[Event]:
        return [replace(kind, noise_multiplier=noise) for kind in kinds]

    return Plan(budget=budget, events=tuple(events(calibrate(budget, events))))


MECHANISMS: dict[str, Callable[[float], Subject]] = {
    build.__name__: build
    for build in (
        gaussian_sum,
        gaussian_sum_by_class,
        gaussian_sum_sampled,
        gaussian_sum_groups,
        histogram,
        quantile,
        shards,
        gradient_steps,
        dpsgd_step,
        dpsgd,
        dpsgd_network,
        ensemble_votes,
        ensemble_agreement,
        ensemble_gradient,
        ensemble_signs,
        critics,
        critics_in_turn,
    )
}


def mechanism_subject(name: str, epsilon: float) -> Subject:
    """The audit of the mechanism called `name`."""
    if name not in MECHANISMS:
        raise unknown_name("mechanism", name, list(MECHANISMS))
    return MECHANISMS[name](epsilon)
