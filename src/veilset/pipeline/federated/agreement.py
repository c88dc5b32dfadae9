"""What all sites and the server agreed on before anything is asked: one file that holds nothing secret.

The server is not trusted, so it decides nothing while the federation runs: method, settings, seed, public images, the
sites with their declared units, epsilons and keys, and the rule for sites that are missing are all written down first.
Each custodian reads the file, and a site answers only under the hash of the one that it was given.

One plan is drawn for all units together. Every site spends the events of that plan at its own noise: `noise` times
larger or smaller, so that they fit the site's own epsilon at its own delta.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from veilset.core.errors import BudgetError, InputError
from veilset.methods.base import Method, MethodPlan
from veilset.pipeline.job import Job, method_of
from veilset.privacy.accounting import calibrate, epsilon_of, gaussian_epsilon
from veilset.privacy.budget import Budget, default_delta
from veilset.privacy.events import Event
from veilset.privacy.vault import PublicFacts, Unit

METHODS: Mapping[str, str] = {
    "merf": "",
    "imgsyn": "",
    "latent": "",
    "evolve": "",
    "dfd": "variant=A",
    "sanitized_gan": "scheme=together",
}
"""Methods that ask for nothing but noisy sums, and the form of each that does."""

_OTHERS: Mapping[str, str] = {
    "pate": "it asks the models of disjoint shards for votes, which are no sum over units",
    "dpaf": "it trains a GAN step by step, and the copies at the sites would drift apart",
    "dpgan": "it trains a GAN step by step, and the copies at the sites would drift apart",
    "pldk": "it trains whole networks several times over, and the copies at the sites would drift apart",
}
"""Why the others cannot be federated."""

PARTITION = "sites"
_BANDS = "teacher_bands"
_FORMAT = 1
_LONGEST = 1 << 20
_MOST_ANSWERS = 50_000  # of all sites; a line has about 500 bytes, and a certificate of more than 2^25 is not read


@dataclass(frozen=True, kw_only=True)
class Member:
    """A site: what it declared in its request, and the noise that follows.

    Args:
        name: in letters, digits, - and _.
        key: its public key, in OpenSSH's form.
        units: how many it declares.
        epsilon: the most that it spends.
        delta: of its guarantee.
        share_out: the number of the share-out that kept each patient at one site (`pseudonyms.py`), or nothing.
        noise: of its sums, in noises of the common plan.
    """

    name: str
    key: str
    units: int
    epsilon: float
    delta: float
    share_out: str = ""
    noise: float = 1.0

    @property
    def budget(self) -> Budget:
        """What it may spend."""
        return Budget(self.epsilon, self.delta)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Who is waited for, how long, and how few are enough; fixed before the first question.

    A sum that is asked once waits for all sites, `sum_seconds` at most. A step of a training waits for the sites that
    are there and owe no earlier answer, `step_seconds` at most. Then whoever answered counts, if these are
    `min_sites` or more. With fewer the round stays open, and after `patience` seconds without an answer the server
    stops, to go on when it is started again.
    """

    min_sites: int
    step_seconds: float = 60.0
    sum_seconds: float = 3600.0
    patience: float = 7200.0


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """One federation. `epsilon` and `delta` are those that the common plan was drawn for, not a guarantee."""

    method: str
    preset: str
    settings: Mapping[str, str]
    seed: int
    samples: int | None
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    unit: Unit
    public: str | None  # the SHA-256 of the public images
    epsilon: float
    delta: float
    members: tuple[Member, ...]
    rule: Rule
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def facts(self) -> PublicFacts:
        """Of all sites together."""
        units = sum(member.units for member in self.members)
        return PublicFacts(units=units, unit=self.unit, shape=self.shape, class_names=self.class_names)

    def facts_of(self, member: Member) -> PublicFacts:
        """Of one site."""
        return replace(self.facts, units=member.units)

    def member(self, name: str) -> Member:
        """The site of this name."""
        for found in self.members:
            if found.name == name:
                return found
        names = ", ".join(member.name for member in self.members)
        raise InputError(f"The agreement knows no site {name!r}. It has {names}.")

    def share_out_of(self, members: Sequence[Member]) -> str:
        """The number of the one share-out that all these sites took part in, else nothing."""
        numbers = {member.share_out for member in members}
        return numbers.pop() if len(numbers) == 1 else ""

    @property
    def job(self) -> Job:
        """What is done, in public words."""
        return Job(
            method=self.method,
            epsilon=self.epsilon,
            delta=self.delta,
            preset=self.preset,
            settings=self.settings,
            samples=self.samples,
            seed=self.seed,
        )

    def method_of(self) -> Method:
        """The configured method."""
        return method_of(self.job)

    def plan(self) -> MethodPlan:
        """The common plan, at the noise that all sites' answers have together."""
        plan = self.method_of().plan(self.facts, Budget(self.epsilon, self.delta))
        _require_sums(self.method, plan)
        return at_noise(plan, self.joint_noise)

    @property
    def joint_noise(self) -> float:
        """The noise of the weighted sum of all sites' answers, in noises of the plan that was drawn."""
        units = self.facts.units
        return 1 / math.sqrt(sum((member.units / units / member.noise) ** 2 for member in self.members))

    def plan_of(self, member: Member) -> MethodPlan:
        """What one site spends: the events of the common plan at its own noise.

        Privacy: raises where they cost more than the site's epsilon at its delta, whatever the agreement says.
        """
        drawn = self.method_of().plan(self.facts, Budget(self.epsilon, self.delta))
        _require_sums(self.method, drawn)
        plan = replace(at_noise(drawn, member.noise), budget=member.budget)
        member.budget.check_against(member.units)
        cost = epsilon_of(plan.events, member.delta)
        if not cost <= member.epsilon * (1 + 1e-9):
            raise BudgetError(
                f"The agreement would cost {member.name} epsilon {cost:.4g}, and it declared {member.epsilon:g}. "
                "Do not start; ask for an agreement with more noise."
            )
        return plan

    def weight(self, member: Member) -> float:
        """How much a unit of this site counts in a sum: what it brings, over the variance of the site's noise."""
        return member.units / member.noise**2

    def to_bytes(self) -> bytes:
        """The content of agreement.json."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1, sort_keys=True).encode() + b"\n"

    @property
    def sha256(self) -> str:
        """The hash under which sites answer."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Agreement":
        """Read `to_bytes` back; anything else raises."""
        try:
            data = json.loads(content[:_LONGEST])
            if data.pop("format") != _FORMAT:
                raise InputError("The agreement is of another version of veilset.")
            members = tuple(Member(**member) for member in data.pop("members"))
            height, width, channels = map(int, data.pop("shape"))
            found = cls(
                members=members,
                rule=Rule(**data.pop("rule")),
                shape=(height, width, channels),
                class_names=tuple(data.pop("class_names")),
                **data,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"This is not an agreement: {type(error).__name__} {error}.") from error
        if found.to_bytes() != content:
            raise InputError("The agreement is not as it was written. Ask the server's keeper for the file itself.")
        return found


def agree(draft: Agreement) -> Agreement:
    """Fill in what follows from the members: the budget that the plan is drawn for, and the noise of each site.

    A site of n units and a Gaussian of noise s brings (n/s)^2 to a mean. The plan is drawn for the epsilon of the one
    Gaussian that brings as much as all sites do together, so that rules which look at the noise look at the true one.
    """
    members = draft.members
    if len({member.name for member in members}) != len(members) or not members:
        raise InputError("Expected sites with different names, one at least.")
    if len({" ".join(member.key.split()[:2]) for member in members}) != len(members):
        raise InputError("Two sites have the same key. Each makes its own with: veilset federate join-request")
    if not 1 <= draft.rule.min_sites <= len(members):
        raise InputError(f"Expected --min-sites from 1 to {len(members)}, got {draft.rule.min_sites}.")
    units = draft.facts.units
    precise = sum((member.units / units / _gaussian_noise(member.budget)) ** 2 for member in members)
    delta = default_delta(units)
    drafted = replace(draft, delta=delta, epsilon=gaussian_epsilon(1 / math.sqrt(precise), delta))
    drafted = replace(drafted, settings={**draft.settings, **_decided(drafted)})
    plan = drafted.method_of().plan(drafted.facts, Budget(drafted.epsilon, delta))
    _require_sums(draft.method, plan)
    answers = len(members) * sum(event.count for event in plan.events)
    if answers > _MOST_ANSWERS:
        raise InputError(
            f"{len(members)} sites would give {answers} answers, and the joint certificate has room for "
            f"{_MOST_ANSWERS}: each is a line of a ledger in it. Set fewer steps, or admit fewer sites."
        )
    noises: dict[tuple[float, float], float] = {}
    for member in members:
        member.budget.check_against(member.units)
        asked = (member.epsilon, member.delta)
        if asked not in noises:
            noises[asked] = calibrate(member.budget, lambda noise: [_louder(event, noise) for event in plan.events])
    noised = tuple(replace(member, noise=noises[member.epsilon, member.delta]) for member in members)
    return replace(drafted, members=noised)


def at_noise(plan: MethodPlan, factor: float) -> MethodPlan:
    """The same plan with all noise multipliers times `factor`."""
    scaled: MethodPlan = _scaled(plan, factor)
    return scaled


def joint_events(agreement: Agreement, members: Sequence[Member]) -> tuple[Event, ...]:
    """The events of these sites as shards of one partition: a unit lies at one site."""
    return tuple(
        replace(event, partition=PARTITION, shard=shard)
        for shard, member in enumerate(members)
        for event in agreement.plan_of(member).events
    )


def _require_sums(method: str, plan: MethodPlan) -> None:
    """Refuse what is more than noisy sums over all units or Poisson samples of them."""
    if method not in METHODS:
        why = _OTHERS.get(method, "nobody has shown that it asks for noisy sums alone")
        raise InputError(f"{method} cannot be federated: {why}. Federated are {', '.join(METHODS)}.")
    if plan.as_published or any(event.source is not None for event in plan.events):
        raise InputError("A federation runs no form as published and builds upon no other release.")
    if any(event.bands > 1 for event in plan.events):
        raise InputError(
            "A federation has independent noise alone: correlated noise cancels only where every site answers every "
            f"step. Use --set {_BANDS}=1, or leave it to the rule with {_BANDS}=auto."
        )
    asks_shards = any(event.partition is not None for event in plan.events) or (
        method == "dfd" and getattr(plan, "teacher", None) is None
    )
    if asks_shards:
        raise InputError(f"This form of {method} asks models of disjoint shards. Use --set {METHODS[method]}.")


def _decided(draft: Agreement) -> dict[str, str]:
    """What `auto` means for a federation where it means something else elsewhere; the agreement then says so."""
    method = draft.method_of()
    if draft.method not in METHODS or getattr(method.settings, _BANDS, None) != "auto":
        return {}
    plan = method.plan(draft.facts, Budget(draft.epsilon, draft.delta))
    return {_BANDS: "1"} if any(event.bands > 1 for event in plan.events) else {}


def _gaussian_noise(budget: Budget) -> float:
    return calibrate(budget, lambda noise: [Event(label="one sum", noise_multiplier=noise)])


def _louder(event: Event, factor: float) -> Event:
    return replace(event, noise_multiplier=event.noise_multiplier * factor)


def _scaled(value: Any, factor: float) -> Any:
    """The value with every event in it scaled: in tuples, and in plans within plans."""
    if isinstance(value, Event):
        return _louder(value, factor)
    if isinstance(value, tuple):
        return tuple(_scaled(item, factor) for item in value)
    if isinstance(value, Budget) or not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    old = {item.name: getattr(value, item.name) for item in dataclasses.fields(value) if item.init}
    new = {name: _scaled(item, factor) for name, item in old.items()}
    changed = {name: item for name, item in new.items() if item is not old[name]}
    return replace(value, **changed) if changed else value
