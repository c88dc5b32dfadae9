"""The server's side: a generator that follows the noised answers of sites. It never holds a record.

Everything here is post-processing of what sites noised at home. The joint certificate lists each site's event as a
shard of the partition "sites": a unit that is at one site only is protected by that site's epsilon.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from veilset.core.errors import InputError, VeilsetError
from veilset.methods.base import Context, MethodPlan
from veilset.methods.sanitized_gan.config import SanitizedGan
from veilset.methods.sanitized_gan.rounds import Rounds
from veilset.pipeline.job import Job, header_of, method_of
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.budget import Budget, default_delta
from veilset.privacy.events import Event
from veilset.privacy.ledger import Ledger
from veilset.privacy.vault import PublicFacts
from veilset.release.certifying import certify
from veilset.release.format import Release

_JOINT_WARNING = (
    "The events were reported by {count} sites; each holds its own ledger and certificate. A unit whose records lie at "
    "several sites is protected by the sum of their epsilons, not by the largest."
)


@dataclass(frozen=True, kw_only=True)
class Member:
    """A site as it introduced itself."""

    name: str
    units: int
    unit: str
    critics: int
    epsilon: float
    delta: float
    event: Event
    seconds: float = 0.0  # until its first answer, the longest of its schedule

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> "Member":
        """Read a site's reply to the invitation; what is missing or mistyped raises."""
        try:
            return cls(
                name=str(reply["name"]),
                units=int(reply["units"]),
                unit=str(reply["unit"]),
                critics=int(reply["critics"]),
                epsilon=float(reply["epsilon"]),
                delta=float(reply["delta"]),
                event=Event.from_json(reply["event"]),
                seconds=float(reply.get("seconds", 0.0)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"A site's reply is not of the form expected: {type(error).__name__} {error}.") from error


class Coordinator:
    """One federation, as the server sees it.

    Args:
        settings: of the method sanitized_gan.
        shape: height, width and channels of all sites' images.
        class_names: in the order of the labels.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        *,
        shape: tuple[int, int, int],
        class_names: tuple[str, ...],
        seed: int = 0,
    ) -> None:
        # The number of units is that of all sites together, and known once they have joined.
        self.facts = PublicFacts(units=1, unit="record", shape=shape, class_names=class_names)
        self.job = Job(method="sanitized_gan", epsilon=1.0, settings=settings, seed=seed)
        method = method_of(self.job)
        assert isinstance(method, SanitizedGan)
        self.method = method
        self.rounds = Rounds(method.settings, self.facts, Context(seed=seed))
        self.members: dict[int, Member] = {}
        self._warm: set[int] = set()

    @property
    def steps(self) -> int:
        """Steps that the generator makes."""
        return self.method.settings.steps

    @property
    def steps_done(self) -> int:
        """Steps that it has made."""
        return self.rounds.training.step

    def invitation(self) -> dict[str, Any]:
        """What a site needs to draw its plan."""
        return {
            "settings": {name: str(value) for name, value in self.method.settings.plain().items()},
            "seed": self.job.seed,
            "shape": list(self.facts.shape),
            "class_names": list(self.facts.class_names),
        }

    def welcome(self, node: int, reply: Mapping[str, Any]) -> Member:
        """Take in a site. One that comes back has lost its critics, which warm up again."""
        member = Member.from_reply(reply)
        units = {other.unit for other in self.members.values()} | {member.unit}
        if len(units) > 1:
            raise InputError(f"{member.name} protects each {member.unit}, other sites another unit. Agree on one.")
        if any(other.name == member.name for place, other in self.members.items() if place != node):
            raise InputError(f"There are two sites called {member.name}. Give each a name of its own.")
        self.members[node] = member
        self._warm.discard(node)
        return member

    def queries(self, nodes: list[int]) -> dict[int, Mapping[str, Tensor]]:
        """What each site is asked at this step: the same points, and more batches where critics are new."""
        warm = self.rounds.query(warm=True)
        cold = warm if all(node in self._warm for node in nodes) else self.rounds.query(warm=False)
        return {node: warm if node in self._warm else cold for node in nodes}

    def take(self, answers: Mapping[int, Tensor]) -> None:
        """Move the generator along the mean of what the sites answered."""
        shape = self.rounds.shape
        for node, answer in answers.items():
            if tuple(answer.shape) != shape or not bool(torch.isfinite(answer).all()):
                raise VeilsetError(f"{self.members[node].name} sent an answer that is not of the shape {shape}.")
        total = torch.stack([answer.double() for answer in answers.values()]).sum(dim=0)
        self.rounds.follow(total, sum(self.members[node].critics for node in answers))
        self._warm |= set(answers)

    def release(self, samples: int, workspace: Path) -> Release:
        """The release, with the joint certificate."""
        members = [self.members[node] for node in sorted(self.members)]
        if not members:
            raise VeilsetError("No site joined, so there is nothing to release.")
        unit = members[0].unit
        facts = dataclasses.replace(
            self.facts, units=sum(member.units for member in members), unit="group" if unit == "group" else "record"
        )
        events = tuple(
            dataclasses.replace(member.event, partition="sites", shard=shard) for shard, member in enumerate(members)
        )
        budget = _joint_budget(members, events, facts.units)
        plan = MethodPlan(budget=budget, events=events, settings=self.method.settings)
        header = header_of(self.job, facts, plan, self.method.inputs())
        sites = [{"name": member.name, "units": member.units, "critics": member.critics} for member in members]
        ledger = Ledger.create(workspace / "joint.jsonl", {"run": "federation", **header, "sites": sites})
        try:
            for event in events:
                ledger.spend(event)
            fitted = self.rounds.finish(facts)
            drawn = fitted.sample(samples, self.job.seed)
            certificate = certify(
                ledger.lines,
                facts,
                budget.delta,
                self.job.method,
                header["settings"],
                samples=samples,
                seed=self.job.seed,
                budget=budget,
                warnings=[_JOINT_WARNING.format(count=len(members)), *fitted.warnings()],
            )
        finally:
            ledger.close()
        models = {name: (model.weights, model.description) for name, model in fitted.models().items()}
        return Release(
            images=drawn.images,
            labels=drawn.labels,
            soft_labels=drawn.soft_labels,
            models=models,
            certificate=certificate,
        )


def _joint_budget(members: Sequence[Member], events: Sequence[Event], units: int) -> Budget:
    """The largest epsilon at the largest delta of the sites; at a smaller delta where that one is not below 1/units."""
    delta = max(member.delta for member in members)
    if delta * units < 1:
        return Budget(max(member.epsilon for member in members), delta)
    delta = default_delta(units)
    return Budget(epsilon_of(events, delta), delta)
