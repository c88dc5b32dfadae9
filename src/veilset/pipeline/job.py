"""A job in public words, and what follows from it before any data is read: method, budget, plan, ledger's header."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from veilset.core.errors import InputError
from veilset.methods import METHODS
from veilset.methods.base import Method, MethodPlan
from veilset.privacy.budget import Budget, default_delta, require_enough
from veilset.privacy.vault import PublicFacts
from veilset.release.inputs import budget_with, plan_with_carried


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to do, in public words only: everything here may stand in the certificate."""

    method: str
    epsilon: float
    delta: float | None = None
    preset: str = "default"
    settings: Mapping[str, Any] = field(default_factory=dict)
    samples: int | None = None
    seed: int = 0
    device: str = "cpu"
    as_published: bool = False
    insecure_seed: int | None = None

    def __post_init__(self) -> None:
        if self.samples is not None and self.samples < 1:
            raise InputError(f"Expected --samples of at least 1, got {self.samples}.")


def budget_of(job: Job, facts: PublicFacts) -> Budget:
    """The job's budget, with the default delta where it names none, checked against the number of units."""
    require_enough(facts.units, facts.unit)
    budget = Budget(job.epsilon, default_delta(facts.units) if job.delta is None else job.delta)
    budget.check_against(facts.units)
    return budget


def method_of(job: Job) -> Method:
    """The configured method."""
    return METHODS.get(job.method).configure(job.preset, job.settings, as_published=job.as_published)


def draw_plan(job: Job, facts: PublicFacts) -> MethodPlan:
    """What the job would do and spend on a vault with these facts. Reads no data."""
    return plan_of(job, method_of(job), facts)


def plan_of(job: Job, method: Method, facts: PublicFacts) -> MethodPlan:
    """The plan of a configured method, with what the releases cost that it builds upon."""
    claims_dp = not job.as_published and job.insecure_seed is None
    budget = budget_with(budget_of(job, facts), method.inputs(), facts.unit, claims_dp=claims_dp)
    return plan_with_carried(method.plan(facts, budget))


def header_of(job: Job, method: Method, facts: PublicFacts, plan: MethodPlan) -> dict[str, Any]:
    """The first line of the ledger: everything that decides what is read and what it costs."""
    return {
        "method": job.method,
        "settings": {"preset": job.preset, **plan.certified()},
        "facts": facts.to_json(),
        "delta": plan.budget.delta,
        "budget": {"epsilon": plan.budget.epsilon, "delta": plan.budget.delta},
        "plan": [event.to_json() for event in plan.events],
        "noise": "os-entropy" if job.insecure_seed is None else "seeded",
        "seed": job.seed,
        "as_published": job.as_published,
        "inputs": [found.to_json() for found in method.inputs()],
    }


def guarantee_of(header: Mapping[str, Any]) -> str:
    """Whether a run with this header will have a guarantee."""
    return "dp" if header["noise"] == "os-entropy" and not header["as_published"] else "none"
