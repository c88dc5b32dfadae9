"""From a vault and a budget to a release: plan, reserve, open the ledger, fit, sample, certify.

The order is the guarantee. The plan is drawn from public facts, the account reserves all of it, the ledger is on disk,
and only then can a mechanism read. What a run paid for stays in its workspace, so that `resume` goes on without paying
twice; a run that ends well leaves nothing but the release and its line in the account.
"""

import dataclasses
import shutil
import uuid
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from veilset.core.errors import InputError
from veilset.core.places import state_directory
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Labels, Records
from veilset.data.images import ImageSet
from veilset.methods import METHODS
from veilset.methods.base import Context, Method
from veilset.pipeline.checks import charged, check_before_paying, early_warnings
from veilset.privacy.account import Account
from veilset.privacy.budget import Budget, default_delta, require_enough
from veilset.privacy.events import Plan
from veilset.privacy.opening import account_of, open_run
from veilset.privacy.vault import Public, PublicFacts, Vault
from veilset.release.certifying import certify
from veilset.release.format import Release
from veilset.release.inputs import budget_with, plan_with_carried

_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to do, in public words only: everything here may stand in the certificate."""

    method: str
    epsilon: float
    delta: float | None = None
    preset: str = "default"
    settings: Mapping[str, str] = field(default_factory=dict)
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


def draw_plan(job: Job, facts: PublicFacts) -> Plan:
    """What the job would spend on a vault with these facts. Reads no data."""
    return plan_of(job, method_of(job), facts)


def plan_of(job: Job, method: Method, facts: PublicFacts) -> Plan:
    """The plan of a configured method, with what the releases cost that it builds upon."""
    claims_dp = not job.as_published and job.insecure_seed is None
    budget = budget_with(budget_of(job, facts), method.inputs(), facts.unit, claims_dp=claims_dp)
    return plan_with_carried(method.plan(facts, budget))


def run(
    vault: Vault,
    job: Job,
    *,
    workspace: Path,
    public: Public | None = None,
    account: Account | None = None,
    resume: bool = False,
    out: Path | None = None,
    progress: Progress = SILENT,
) -> Release:
    """Do the job. The workspace keeps the ledger and what was paid for; remove it once the release is safe.

    Under torchrun every process calls this with the same arguments and gets the same release; rank 0 saves it.

    Args:
        vault: the private data.
        job: what to do.
        workspace: a folder for this run alone, beside which there is room.
        public: public images that help.
        account: who pays; None takes the account that is kept for the vault's source.
        resume: go on with the unfinished run in `workspace`.
        out: where the release will be saved, if that is known: it is looked at before anything is paid.
        progress: where work is reported.
    """
    from veilset.privacy.noise import NoiseSource
    from veilset.privacy.processes import SharedLedger, join_if_launched, rank_and_size
    from veilset.privacy.session import Session
    from veilset.training.threads import set_thread_count

    method = method_of(job)
    if public is not None and not (type(public) is Public and public.is_for(vault)):
        raise InputError(
            "Expected public images that were compared with this vault. Pass public=vault.check_public(images)."
        )
    if public is None and method.requires_public():
        raise InputError(
            f"{job.method} with these settings needs public images. Pass --public, for example --public builtin:photos."
        )
    within = method.public_pictures()
    if within is not None:
        vault.check_public(within)
    join_if_launched(job.device)
    rank, size = rank_and_size()
    if size == 1:
        set_thread_count()
    plan = plan_of(job, method, vault.facts)
    budget = plan.budget
    count = job.samples or method.default_samples(vault.facts)
    header = header_of(job, method, vault.facts, plan)
    opened = None
    if rank == 0:
        check_before_paying(vault.facts, count, workspace=workspace, public=public, out=out)
        account = account_of(vault, account, progress)
        opened = open_run(
            vault, plan, header, workspace=workspace, account=account, resume=resume, guarantee=guarantee_of(header)
        )
    ledger = opened if opened is not None and size == 1 else SharedLedger(opened)
    noise = NoiseSource(job.insecure_seed, rank)
    progress = progress if rank == 0 else SILENT
    try:
        with nullcontext() if account is None else charged(account, budget, workspace):
            session = Session(vault, plan, ledger, noise, workspace=workspace, progress=progress)
            context = Context(seed=job.seed, device=job.device, progress=progress, workspace=workspace)
            method.fit(session, public, context)
            session.finish()
            if isinstance(ledger, SharedLedger):
                ledger.synchronise()
            samples = method.sample(count, job.seed)
            certificate = certify(
                ledger.lines,
                vault.facts,
                budget.delta,
                job.method,
                header["settings"],
                samples=len(samples.images),
                seed=job.seed,
                budget=budget,
                reasons=(method.published_reason,) if job.as_published and method.published_reason else (),
                warnings=[
                    *early_warnings(vault.facts, budget),
                    *_lacking(vault.facts, samples.labels),
                    *(found.statement() for found in method.inputs()),
                    *method.warnings(),
                ],
            )
    finally:
        ledger.close()
    return Release(
        images=samples.images,
        labels=samples.labels,
        soft_labels=samples.soft_labels,
        models={name: (model.weights, model.description) for name, model in method.models().items()},
        certificate=certificate,
    )


def synthesize(
    vault: Vault,
    *,
    method: str,
    budget: Budget,
    public: Records | Public | None = None,
    account: Account | None = None,
    workspace: Path | None = None,
    resume: bool = False,
    progress: Progress = SILENT,
    **options: Any,
) -> Release:
    """Make a release of `vault` in memory; save it with `release.save(path)`. `options` are the fields of `Job`.

    It is paid from `account`, or from the one that is kept for the vault's source: the same that the command line
    charges. A run that was cut off goes on with `resume`, in the same `workspace`.
    """
    shared = None if public is None else vault.check_public(_in_shape(public, vault.facts), progress)
    try:
        job = Job(method=method, epsilon=budget.epsilon, delta=budget.delta, **options)
    except TypeError as error:
        raise InputError(f"{error}. Options: {', '.join(f.name for f in dataclasses.fields(Job))}.") from error
    place = workspace or state_directory() / "runs" / uuid.uuid4().hex
    payer = account_of(vault, account, progress)
    release = run(vault, job, workspace=place, public=shared, account=payer, resume=resume, progress=progress)
    payer.end(str(release.certificate.header["run"]))
    shutil.rmtree(place)
    return release


def _in_shape(public: Records | Public, facts: PublicFacts) -> Records | Public:
    """Public images in memory, brought to the size and colours of the private ones."""
    height, width, channels = facts.shape
    if isinstance(public, ImageSet) and tuple(public.shape) != facts.shape and height == width:
        return public.with_channels(channels).resize(height)
    return public


def header_of(job: Job, method: Method, facts: PublicFacts, plan: Plan) -> dict[str, Any]:
    """The first line of the ledger: everything that decides what is read and what it costs."""
    return {
        "method": job.method,
        "settings": {"preset": job.preset, **method.config.certified(facts)},
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


def _lacking(facts: PublicFacts, labels: Labels) -> list[str]:
    """Classes that nothing was released of. Labels are released anyway, so this says nothing new."""
    counts = np.bincount(labels, minlength=facts.classes)
    names = [name for name, count in zip(facts.class_names, counts, strict=False) if count == 0]
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return [f"{len(names)} of {facts.classes} classes have no released image: {shown}."] if names else []
