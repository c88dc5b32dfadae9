"""From a vault and a budget to a release: plan, reserve, open the ledger, fit, sample, certify.

The order is the guarantee. The plan is drawn from public facts, the account reserves all of it, the ledger is on disk,
and only then can a mechanism read. What a run paid for stays in its workspace, so that `resume` goes on without paying
twice; a run that ends well leaves nothing but the release and its line in the account.
"""

import dataclasses
import shutil
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from veilset.core.errors import InputError
from veilset.core.places import state_directory
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Labels, Records
from veilset.data.images import ImageSet
from veilset.methods.base import Context, Method
from veilset.pipeline.checks import charged, check_before_paying, early_warnings
from veilset.pipeline.job import Job, draw
from veilset.privacy.account import Account
from veilset.privacy.budget import Budget
from veilset.privacy.opening import account_of, opened
from veilset.privacy.vault import Public, PublicFacts, Vault
from veilset.release.certifying import certify
from veilset.release.format import Release

_SHOWN = 10


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
    from veilset.privacy.processes import join_if_launched
    from veilset.training.threads import set_thread_count

    rank, size = join_if_launched(job.device)
    if size == 1:
        set_thread_count()
    drawn = draw(job, vault.facts)
    method, plan, header = drawn.method, drawn.plan, drawn.header
    _check_public(vault, method, public)
    count = job.samples or method.default_samples(vault.facts)
    expected = early_warnings(vault.facts, plan.budget)
    if rank == 0:
        check_before_paying(vault.facts, count, workspace=workspace, public=public, out=out)
        account = account_of(vault, account, progress)
    progress = progress if rank == 0 else SILENT
    with (
        opened(
            vault,
            plan,
            header,
            workspace=workspace,
            account=account,
            resume=resume,
            guarantee="dp" if drawn.claims_dp else "none",
            noise=NoiseSource(job.insecure_seed, rank),
            progress=progress,
        ) as opening,
        charged(account, job.epsilon, workspace),
    ):
        context = Context(seed=job.seed, device=job.device, progress=progress, workspace=workspace)
        fitted = method.fit(plan, opening.session, public, context)
        lines = opening.finished_lines()
        samples = fitted.sample(count, job.seed)
        certificate = certify(
            lines,
            vault.facts,
            plan.budget.delta,
            job.method,
            header["settings"],
            samples=len(samples.images),
            seed=job.seed,
            budget=plan.budget,
            reasons=(method.published_reason,) if job.as_published and method.published_reason else (),
            warnings=[
                *expected,
                *_lacking(vault.facts, samples.labels),
                *(found.statement() for found in drawn.inputs),
                *fitted.warnings(),
            ],
        )
    return Release(
        images=samples.images,
        labels=samples.labels,
        soft_labels=samples.soft_labels,
        models={name: (model.weights, model.description) for name, model in fitted.models().items()},
        certificate=certificate,
    )


def publish(
    vault: Vault,
    job: Job,
    out: Path,
    *,
    public: Public | None = None,
    account: Account,
    resume: bool = False,
    sign_key: Path | None = None,
    progress: Progress = SILENT,
) -> Release | None:
    """Do the job and save its release at `out`, whole or not at all; then the run's folder beside it goes.

    Under torchrun rank 0 saves it, and the other processes return None.
    """
    from veilset.privacy.processes import rank_and_size

    workspace = workspace_beside(out)
    release = run(
        vault, job, workspace=workspace, public=public, account=account, resume=resume, out=out, progress=progress
    )
    if rank_and_size()[0] != 0:
        return None
    with charged(account, job.epsilon, workspace):
        release.save(out, sign_key=sign_key)
    account.end(str(release.certificate.header["run"]))
    shutil.rmtree(workspace)
    return release


def workspace_beside(out: Path) -> Path:
    """Where an unfinished run towards `out` keeps what it paid for."""
    return out.with_name(f"{out.name}.veilset-run")


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


def _check_public(vault: Vault, method: Method, public: Public | None) -> None:
    """Refuse public images that were not compared with this vault, and a method that cannot do without any."""
    if public is not None and not (type(public) is Public and public.is_for(vault)):
        raise InputError(
            "Expected public images that were compared with this vault. Pass public=vault.check_public(images)."
        )
    if public is None and method.requires_public():
        raise InputError(
            f"{method.name} with these settings needs public images. Pass --public, for example "
            "--public builtin:photos."
        )
    within = method.public_pictures()
    if within is not None:
        vault.check_public(within)


def _in_shape(public: Records | Public, facts: PublicFacts) -> Records | Public:
    """Public images in memory, brought to the size and colours of the private ones."""
    height, width, channels = facts.shape
    if isinstance(public, ImageSet) and tuple(public.shape) != facts.shape and height == width:
        return public.with_channels(channels).resize(height)
    return public


def _lacking(facts: PublicFacts, labels: Labels) -> list[str]:
    """Classes that nothing was released of. Labels are released anyway, so this says nothing new."""
    counts = np.bincount(labels, minlength=facts.classes)
    names = [name for name, count in zip(facts.class_names, counts, strict=False) if count == 0]
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return [f"{len(names)} of {facts.classes} classes have no released image: {shown}."] if names else []
