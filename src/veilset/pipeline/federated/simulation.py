"""A federation on one machine: its sites hold disjoint parts of one dataset, which pays once, for all of them.

Privacy: a unit is in one part, by its own hash (`parts.py`), so the sites' events are shards of one partition. The
dataset's own account reserves them together before a site starts; a site then finds its shard there and charges
nothing else.
"""

import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from veilset.core.errors import BudgetError, InputError
from veilset.pipeline.federated.agreement import PARTITION, Agreement, joint_events
from veilset.privacy.account import Account
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.sources import confirm_groups
from veilset.privacy.vault import Vault


def plan_simulation(agreement: Agreement) -> Plan:
    """The plans of all sites as shards of one partition."""
    budget = Budget(max(member.epsilon for member in agreement.members), agreement.members[0].delta)
    return Plan(budget=budget, events=joint_events(agreement, agreement.members))


def reserve_simulation(account: Account, agreement: Agreement, whole: Vault) -> str:
    """Reserve the whole simulation on the dataset's account; the run's name, by which sites find it."""
    run = uuid.uuid4().hex
    plan = plan_simulation(agreement)
    account.reserve(run, agreement.method, plan, unit=whole.facts.unit, fingerprint=whole.fingerprint())
    confirm_groups(whole, account)
    return run


def covered_by(account: Account, run: str, number: int, whole: Vault) -> Callable[[Plan], str]:
    """A check that the plan of site `number` is what the simulation `run` of this data reserved for it.

    It gives the name of that part, under which one site, and no second one, has its place in the account.
    """

    def check(plan: Plan) -> str:
        wanted = Counter(_shard(event, number - 1) for event in plan.events)
        for found in account.reservations:
            is_this = found.run == run and found.ended is None and found.fingerprint == whole.fingerprint()
            if is_this and wanted == Counter(event for event in found.events if event.shard == number - 1):
                return f"{run}-{number}"
        raise BudgetError(f"{account.path} holds no reservation of this simulation for its site {number}.")

    return check


def numbers_of(part: str) -> tuple[int, int]:
    """`--part K/N` as two numbers."""
    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise InputError(f"Expected --part K/N with 1 <= K <= N, got {part!r}.")
    return int(number), int(count)


def _shard(event: Event, shard: int) -> Event:
    return replace(event, partition=PARTITION, shard=shard)
