"""From a vault and a budget to a release: plan, reserve, open the ledger, fit, sample, certify.

The order is the guarantee. The plan is drawn from public facts, the account reserves all of it, the ledger is on disk,
and only then can a mechanism read. What a run paid for stays in its workspace, so that `resume` goes on without paying
twice; a run that ends well leaves nothing but the release and its line in the account.
"""

import dataclasses
import json
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from veilset.core.errors import InputError
from veilset.core.places import state_directory
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Records
from veilset.data.images import ImageSet
from veilset.methods import METHODS
from veilset.methods.base import Context, Method
from veilset.privacy.account import Account
from veilset.privacy.budget import Budget, default_delta
from veilset.privacy.events import Plan
from veilset.privacy.ledger import Ledger
from veilset.privacy.vault import Public, PublicFacts, Vault
from veilset.release.certifying import certify
from veilset.release.format import Release

_LEDGER = "ledger.jsonl"


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
    budget = Budget(job.epsilon, default_delta(facts.units) if job.delta is None else job.delta)
    budget.check_against(facts.units)
    return budget


def method_of(job: Job) -> Method:
    """The configured method."""
    return METHODS.get(job.method).configure(job.preset, job.settings, as_published=job.as_published)


def draw_plan(job: Job, facts: PublicFacts) -> Plan:
    """What the job would spend on a vault with these facts. Reads no data."""
    return method_of(job).plan(facts, budget_of(job, facts))


def run(
    vault: Vault,
    job: Job,
    *,
    workspace: Path,
    public: Public | None = None,
    account: Account | None = None,
    resume: bool = False,
    progress: Progress = SILENT,
) -> Release:
    """Do the job. The workspace keeps the ledger and what was paid for; remove it once the release is safe.

    Under torchrun every process calls this with the same arguments and gets the same release; rank 0 saves it.
    """
    from veilset.privacy.distributed import SharedLedger, join_if_launched, rank_and_size
    from veilset.privacy.mechanisms import Session
    from veilset.privacy.noise import NoiseSource
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
    budget = budget_of(job, vault.facts)
    plan = method.plan(vault.facts, budget)
    header = header_of(job, method, vault.facts, plan)
    opened = open_ledger(workspace, header, resume=resume, account=account, plan=plan) if rank == 0 else None
    ledger = opened if opened is not None and size == 1 else SharedLedger(opened)
    noise = NoiseSource(job.insecure_seed, rank)
    progress = progress if rank == 0 else SILENT
    try:
        session = Session(vault, plan, ledger, noise, workspace=workspace, progress=progress)
        context = Context(seed=job.seed, device=job.device, progress=progress, workspace=workspace)
        method.fit(session, public, context)
        session.finish()
        if isinstance(ledger, SharedLedger):
            ledger.synchronise()
        samples = method.sample(job.samples or method.default_samples(vault.facts), job.seed)
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
            warnings=[*_warnings(vault.facts, budget, account), *method.warnings()],
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
    progress: Progress = SILENT,
    **options: Any,
) -> Release:
    """Make a release of `vault` in memory; save it with `release.save(path)`. `options` are the fields of `Job`."""
    shared = None if public is None else vault.check_public(_in_shape(public, vault.facts), progress)
    try:
        job = Job(method=method, epsilon=budget.epsilon, delta=budget.delta, **options)
    except TypeError as error:
        raise InputError(f"{error}. Options: {', '.join(f.name for f in dataclasses.fields(Job))}.") from error
    workspace = state_directory() / "runs" / uuid.uuid4().hex
    release = run(vault, job, workspace=workspace, public=shared, account=account, progress=progress)
    shutil.rmtree(workspace)
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
        "plan": [event.to_json() for event in plan.events],
        "noise": "os-entropy" if job.insecure_seed is None else "seeded",
        "seed": job.seed,
        "as_published": job.as_published,
    }


def open_ledger(
    workspace: Path, header: dict[str, Any], *, resume: bool, account: Account | None, plan: Plan
) -> Ledger:
    """The ledger of a run, new or resumed, after the account has reserved all of its plan."""
    path = workspace / _LEDGER
    if path.exists() and b"\n" not in path.read_bytes():
        path.unlink()  # a run that was cut off before its first line had read nothing
    if path.exists() and not resume:
        raise InputError(
            f"An unfinished run is in {workspace}. Pass --resume to go on with what it paid for, "
            "or remove that folder to start anew; what it reserved stays spent."
        )
    if not path.exists():
        identity = {"run": uuid.uuid4().hex}
        if account is not None:
            account.reserve(identity["run"], header["method"], plan, guarantee=_guarantee(header))
        return Ledger.create(path, identity | header)
    ledger = Ledger.reopen(path)
    kept = {name: value for name, value in ledger.header.items() if name != "run"}
    wanted = json.loads(json.dumps(header))
    if kept != wanted:
        changed = sorted(name for name in wanted if kept.get(name) != wanted[name])
        ledger.close()
        raise InputError(
            f"The unfinished run in {workspace} has other {', '.join(changed)}. Resume it with the options it was "
            "started with, or remove that folder to start anew; what it reserved stays spent."
        )
    if account is not None:
        account.reserve(str(ledger.header["run"]), header["method"], plan, guarantee=_guarantee(header))
    return ledger


def _guarantee(header: Mapping[str, Any]) -> str:
    return "dp" if header["noise"] == "os-entropy" and not header["as_published"] else "none"


def _warnings(facts: PublicFacts, budget: Budget, account: Account | None) -> list[str]:
    warnings = []
    if budget.epsilon > 10:
        warnings.append(f"Epsilon {budget.epsilon:g} is large: the guarantee for one {facts.unit} is weak.")
    if facts.units < 1000:
        warnings.append(f"Only {facts.units} {facts.unit}s: at this size the noise may drown what there is to learn.")
    if account is None:
        warnings.append("No account was kept, so other releases of the same data are not counted here.")
    return warnings
