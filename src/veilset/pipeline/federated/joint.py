"""The release of a federation, and its joint certificate: the events of every site, signed by the site.

Privacy: each site's events are a shard of the partition "sites". A unit that is at one site only is protected by that
site's epsilon; one that is at several by the sum of theirs, which the certificate says, unless all sites declare that
they took part in one share-out (`pseudonyms.py`).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from veilset.core.errors import VeilsetError
from veilset.methods.base import Fitted, MethodPlan
from veilset.pipeline.federated.agreement import Agreement, Member, joint_events
from veilset.pipeline.federated.state import CoordinatorState
from veilset.pipeline.job import header_of
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.budget import Budget, default_delta
from veilset.privacy.events import Event
from veilset.privacy.ledger import Ledger
from veilset.release.certifying import certify
from veilset.release.format import Release

_WARNING = (
    "This is the joint certificate of {count} sites; each holds its own ledger and certificate, and {signed} of them "
    "signed what they spent. "
)
_AT_SEVERAL = "A unit whose records lie at several sites is protected by the sum of their epsilons, not by the largest."
_AT_ONE = (
    "The sites declare that an office kept each unit whose records lie at several of them at one alone (share-out "
    "{number}), so the largest epsilon holds for every unit. Nobody can check this from outside. If they did not, the "
    "sum of their epsilons holds for such a unit."
)


def release_of(agreement: Agreement, state: CoordinatorState, fitted: Fitted, rounds: int, workspace: Path) -> Release:
    """Draw the release, and certify it by the events of all sites that answered or signed anything."""
    statements = state.statements()
    heard = {name.partition("@")[0] for number in range(rounds) for name in state.counted(number)}
    heard |= set(statements) | set(state.banned)
    members = [member for member in agreement.members if member.name in heard]
    if not members:
        raise VeilsetError("No site answered, so there is nothing to release.")
    facts = replace(agreement.facts, units=sum(member.units for member in members))
    events = joint_events(agreement, members)
    budget = _joint_budget(members, events, facts.units)
    plan: MethodPlan = replace(agreement.plan(), budget=budget, events=events)
    job = replace(agreement.job, epsilon=budget.epsilon, delta=budget.delta)
    header = header_of(job, facts, plan, ()) | {"agreement": agreement.sha256, "sites": _signed(members, statements)}
    ledger = Ledger.create(_fresh(workspace / "joint.jsonl"), {"run": "federation", **header})
    try:
        for event in events:
            ledger.spend(event)
        drawn = fitted.sample(agreement.samples or agreement.method_of().default_samples(facts), agreement.seed)
        shared = agreement.share_out_of(members)
        warning = _WARNING.format(count=len(members), signed=len(statements))
        warning += _AT_ONE.format(number=shared) if shared else _AT_SEVERAL
        certificate = certify(
            ledger.lines,
            samples=len(drawn.images),
            warnings=[warning, *fitted.warnings()],
        )
    finally:
        ledger.close()
    return Release(
        images=drawn.images,
        labels=drawn.labels,
        soft_labels=drawn.soft_labels,
        models={name: (model.weights, model.description) for name, model in fitted.models().items()},
        certificate=certificate,
    )


def _signed(members: Sequence[Member], statements: dict[str, dict[str, object]]) -> list[dict[str, object]]:
    nothing = {"statement": None, "signature": None}
    return [
        {"name": member.name, "units": member.units, "key": member.key, **statements.get(member.name, nothing)}
        for member in members
    ]


def _joint_budget(members: Sequence[Member], events: Sequence[Event], units: int) -> Budget:
    """The largest epsilon at the largest delta of the sites; at a smaller delta where that one is not below 1/units."""
    delta = max(member.delta for member in members)
    if delta * units < 1:
        return Budget(max(member.epsilon for member in members), delta)
    delta = default_delta(units)
    return Budget(epsilon_of(events, delta), delta)


def _fresh(path: Path) -> Path:
    """A place for a new ledger; one that a killed server left behind holds nothing that is not in the state."""
    path.unlink(missing_ok=True)
    return path
