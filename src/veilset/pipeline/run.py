"""From a vault and a budget to a release: plan, reserve, open the ledger, fit, sample, certify.

The order is the guarantee. The plan is drawn from public facts, the account reserves all of it, the ledger is on disk,
and only then can a mechanism read. What a run paid for stays in its workspace, so that `resume` goes on without paying
twice; a run that ends well leaves nothing but the release and its line in the account.
"""

import dataclasses
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from veilset.core.errors import InputError
from veilset.core.places import state_directory
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Labels
from veilset.methods.base import Context, Fitted, Method
from veilset.pipeline.checks import charged, check_before_paying, warnings_of
from veilset.pipeline.job import Drawn, Job, draw, method_of
from veilset.pipeline.public_images import PublicSource, public_records
from veilset.privacy.account import Account
from veilset.privacy.budget import Budget
from veilset.privacy.ledger import Line
from veilset.privacy.opening import opened
from veilset.privacy.sources import account_of
from veilset.privacy.vault import Public, PublicFacts, Vault
from veilset.release.about import About
from veilset.release.certificate import Certificate
from veilset.release.certifying import certify
from veilset.release.format import Model, Release


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
    with _fitted(
        vault, job, workspace=workspace, public=public, account=account, resume=resume, out=out, progress=progress
    ) as found:
        samples = found.fitted.sample(found.count, job.seed)
        certificate = found.certificate(len(samples.images), samples.labels)
    return Release(
        images=samples.images,
        labels=samples.labels,
        soft_labels=samples.soft_labels,
        models=found.models(),
        certificate=certificate,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Fit:
    """A fit whose plan is spent, and what its certificate is made of."""

    job: Job
    drawn: Drawn
    facts: PublicFacts
    fitted: Fitted
    lines: list[Line]
    count: int  # of images wanted

    def certificate(self, samples: int, labels: Labels | None = None) -> Certificate:
        """The certificate of a release of so many images, with these labels where they are made already."""
        job, plan, reason = self.job, self.drawn.plan, self.drawn.method.published_reason
        return certify(
            self.lines,
            samples=samples,
            reasons=(reason,) if job.as_published and reason else (),
            warnings=[
                *warnings_of(self.facts, plan.budget, labels),
                *(found.statement() for found in self.drawn.inputs),
                *self.fitted.warnings(),
            ],
        )

    def models(self) -> dict[str, Model]:
        """Networks to publish."""
        return {name: (model.weights, model.description) for name, model in self.fitted.models().items()}


@contextmanager
def _fitted(
    vault: Vault,
    job: Job,
    *,
    workspace: Path,
    public: Public | None,
    account: Account | None,
    resume: bool,
    out: Path | None,
    progress: Progress,
    in_units: bool = False,
) -> Iterator[_Fit]:
    """Plan, reserve, open the ledger, fit. What the block does with the fit is part of the run."""
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
    if rank == 0:
        check_before_paying(
            vault.facts, count, workspace=workspace, public=public, scale=plan.public_scale, out=out, in_units=in_units
        )
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
        yield _Fit(job=job, drawn=drawn, facts=vault.facts, fitted=fitted, lines=lines, count=count)


def publish(
    vault: Vault,
    job: Job,
    out: Path,
    *,
    public: Public | None = None,
    account: Account,
    resume: bool = False,
    sign_key: Path | None = None,
    about: About | None = None,
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
        release.save(out, sign_key=sign_key, about=about)
    account.end(str(release.certificate.header["run"]))
    shutil.rmtree(workspace)
    return release


def publish_for_sampling(
    vault: Vault,
    job: Job,
    out: Path,
    *,
    public: Public | None = None,
    account: Account,
    resume: bool = False,
    progress: Progress = SILENT,
) -> Certificate | None:
    """Do the job but for its images: `out` becomes a folder that `veilset sample` draws them from (pipeline/scale).

    Under torchrun rank 0 saves it, and the other processes return None.
    """
    from veilset.pipeline.scale.run_folder import save_run
    from veilset.privacy.processes import rank_and_size

    if not method_of(job).any_number_of_images:
        raise InputError(
            f"{job.method} leaves a fixed set of images, so there is nothing to share out. Leave --sample-later out. "
            "Nothing was charged."
        )
    if vault.facts.findings:
        raise InputError(
            "Shards hold one class for each image, not findings. Leave --sample-later out. Nothing was charged."
        )
    workspace = workspace_beside(out)
    with _fitted(
        vault,
        job,
        workspace=workspace,
        public=public,
        account=account,
        resume=resume,
        out=out,
        progress=progress,
        in_units=True,
    ) as found:
        certificate = found.certificate(found.count)
        if rank_and_size()[0] == 0:
            save_run(out, found.fitted, certificate, found.models())
    if rank_and_size()[0] != 0:
        return None
    account.end(str(certificate.header["run"]))
    shutil.rmtree(workspace)
    return certificate


def workspace_beside(out: Path) -> Path:
    """Where an unfinished run towards `out` keeps what it paid for."""
    return out.with_name(f"{out.name}.veilset-run")


def synthesize(
    vault: Vault,
    *,
    method: str,
    budget: Budget | float,
    public: PublicSource | None = None,
    account: Account | None = None,
    workspace: Path | None = None,
    resume: bool = False,
    progress: Progress = SILENT,
    **options: Any,
) -> Release:
    """Make a release of `vault` in memory; save it with `release.save(path)`. `options` are the fields of `Job`.

    A budget that is a number is an epsilon, with a safe delta for the number of records. Public images may be a path,
    an array or what `open_images` gives. The run is paid from `account`, or from the one that is kept for the vault's
    source: the same that the command line charges. A run that was cut off goes on with `resume`, in the same
    `workspace`.

    >>> import veilset as vs
    >>> vault = vs.Vault.open("builtin:digits:train")
    >>> release = vs.synthesize(vault, method="merf", budget=vs.Budget(1.0, 1e-5), preset="smoke", samples=60)
    >>> release.certificate.guarantee, release.certificate.unit, len(release)
    ('dp', 'record', 60)
    """
    epsilon, delta = (budget.epsilon, budget.delta) if isinstance(budget, Budget) else (budget, None)
    try:
        job = Job(method=method, epsilon=epsilon, delta=delta, **options)
    except TypeError as error:
        raise InputError(f"{error}. Options: {', '.join(f.name for f in dataclasses.fields(Job))}.") from error
    return synthesize_job(
        vault, job, public=public, account=account, workspace=workspace, resume=resume, progress=progress
    )


def synthesize_job(
    vault: Vault,
    job: Job,
    *,
    public: PublicSource | None = None,
    account: Account | None = None,
    workspace: Path | None = None,
    resume: bool = False,
    progress: Progress = SILENT,
) -> Release:
    """Do the job in memory: what every call from Python comes to."""
    shared = None
    if public is not None:
        shared = vault.check_public(public_records(public, vault.facts, progress), progress)
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
    if public is None and method.requires_public:
        raise InputError(
            f"{method.name} with these settings needs public images. Pass --public, for example "
            "--public builtin:photos."
        )
    within = method.public_pictures()
    if within is not None:
        vault.check_public(within)
