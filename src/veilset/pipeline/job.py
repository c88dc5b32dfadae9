"""A job in public words, and what follows from it before any data is read: method, budget, plan, ledger's header."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from veilset.core.errors import InputError
from veilset.methods import METHODS
from veilset.methods.base import Method, MethodPlan
from veilset.privacy.budget import Budget
from veilset.privacy.vault import PublicFacts
from veilset.release.inputs import InputRelease, budget_with


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
    return Budget.for_units(job.epsilon, job.delta, facts.units, facts.unit)


def method_of(job: Job) -> Method:
    """The configured method."""
    return METHODS.get(job.method).configure(job.preset, job.settings, as_published=job.as_published)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What follows from a job on a vault with known facts, before any of its data is read."""

    method: Method
    inputs: tuple[InputRelease, ...]  # releases that it builds upon
    plan: MethodPlan  # with what those cost
    header: dict[str, Any]  # the first line of the ledger
    claims_dp: bool  # whether the run will have a guarantee


def draw(job: Job, facts: PublicFacts) -> Drawn:
    """Configure the method, verify what it builds upon, and plan. Reads no data."""
    method, budget = method_of(job), budget_of(job, facts)
    if facts.findings and not method.takes_findings:
        raise InputError(
            f"{method.name} needs one class for each image, and these have {facts.classes} findings. Pass "
            "--findings-as classes, which makes a class of each combination, or use --method imgsyn, merf, latent or "
            "evolve."
        )
    inputs = method.inputs()
    claims_dp = not job.as_published and job.insecure_seed is None
    plan = method.plan(facts, budget_with(budget, inputs, facts.unit, claims_dp=claims_dp))
    plan = replace(plan, events=(*plan.events, *plan.budget.carried))
    header = header_of(job, facts, plan, inputs)
    return Drawn(method=method, inputs=inputs, plan=plan, header=header, claims_dp=claims_dp)


def draw_plan(job: Job, facts: PublicFacts) -> MethodPlan:
    """What the job would do and spend on a vault with these facts.

    >>> import veilset as vs
    >>> vault = vs.Vault.open("builtin:digits:train")
    >>> plan = vs.plan(vs.Job(method="merf", epsilon=1.0), vault.facts)
    >>> plan.budget.delta, len(plan.events) > 0
    (1e-05, True)
    """
    return draw(job, facts).plan


def header_of(job: Job, facts: PublicFacts, plan: MethodPlan, inputs: Sequence[InputRelease]) -> dict[str, Any]:
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
        "inputs": [found.to_json() for found in inputs],
    }
