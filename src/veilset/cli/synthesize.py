"""`veilset synthesize`: from private images to a release."""

import os
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from veilset.cli.archives import reads_archives
from veilset.cli.console import Console, RichProgress, epsilon_text
from veilset.cli.options import (
    AsJson,
    Balance,
    Channels,
    Classes,
    Delta,
    Description,
    Device,
    Epsilon,
    GroupName,
    LabelName,
    Licence,
    Limit,
    Method,
    Out,
    Preset,
    Publisher,
    Seed,
    Settings,
    Size,
    Title,
    Unit,
    about_options,
    check_device,
    data_options,
    settings_of,
    with_balance,
)
from veilset.cli.pulse import PULSE
from veilset.core.errors import InputError

if TYPE_CHECKING:
    from veilset.core.records import Records
    from veilset.data.archives.reading import Reading
    from veilset.privacy.account import Account
    from veilset.release.certificate import Certificate


@reads_archives
def synthesize(
    private: Annotated[str, typer.Argument(metavar="PRIVATE", help="The private images: npz[:split], folder, ...")],
    *,
    method: Method,
    epsilon: Epsilon,
    out: Out,
    delta: Delta = None,
    public: Annotated[
        str | None, typer.Option("--public", help="Public images that help, brought to the same size.")
    ] = None,
    preset: Preset = "default",
    settings: Settings = None,
    balance: Balance = None,
    samples: Annotated[int | None, typer.Option("--samples", min=1, help="How many images to release.")] = None,
    unit: Unit = None,
    groups: GroupName = None,
    images_per_group: Annotated[
        int | None,
        typer.Option(
            "--images-per-group",
            min=1,
            help="Images that one patient has at most: runs for each record then count for patients, too.",
        ),
    ] = None,
    account: Annotated[
        Path | None, typer.Option("--account", help="The dataset's account.", show_default="one kept for this data")
    ] = None,
    sign: Annotated[Path | None, typer.Option("--sign", help="Sign with this private key; see veilset keygen.")] = None,
    title: Title = None,
    licence: Licence = None,
    publisher: Publisher = None,
    description: Description = None,
    size: Size = None,
    channels: Channels = None,
    limit: Limit = None,
    labels: LabelName = None,
    classes: Classes = None,
    seed: Seed = 0,
    device: Device = "cpu",
    sample_later: Annotated[
        bool,
        typer.Option(
            "--sample-later", help="Write a run instead, whose images `veilset sample` makes on any number of machines."
        ),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before the budget is spent.")] = False,
    as_published: Annotated[
        bool, typer.Option("--as-published", help="The paper's own form; it has no guarantee, and the release says so.")
    ] = False,
    insecure_seed: Annotated[
        int | None, typer.Option("--insecure-seed", help="Seed the privacy noise, too. The guarantee is gone.")
    ] = None,
    as_json: AsJson = False,
    reading: "Reading | None" = None,
) -> None:
    """Make a private stand-in for PRIVATE: spend the budget once, write a verified release to --out."""
    started = time.perf_counter()
    console = Console(as_json=as_json)
    options = data_options(size, channels, limit, labels, classes, seed, reading)
    from veilset.core.files import require_absent
    from veilset.data.opening import open_images
    from veilset.pipeline.checks import warnings_of
    from veilset.pipeline.job import Job, budget_of
    from veilset.pipeline.run import publish, publish_for_sampling, workspace_beside
    from veilset.privacy.account import Account
    from veilset.privacy.sources import account_of
    from veilset.privacy.vault import Vault
    from veilset.release.about import About
    from veilset.release.inputs import refuse_release_as_public
    from veilset.release.signing import load_private_key

    about = About(**about_options(title, licence, publisher, description))
    require_absent(out)
    refuse_release_as_public(public)
    if sign is not None:
        load_private_key(sign)
    check_device(device)
    if sample_later and (sign is not None or about != About()):
        raise InputError("A run is not published, its release is: pass --sign and --title, ... to veilset sample.")
    job = Job(
        method=method,
        epsilon=epsilon,
        delta=delta,
        preset=preset,
        settings=with_balance(settings_of(settings), method, balance),
        samples=samples,
        seed=seed,
        device=device,
        as_published=as_published,
        insecure_seed=insecure_seed,
    )
    progress = RichProgress()
    records = open_images(private, groups=groups, progress=progress, **options)
    vault = Vault(records, unit=unit_of(unit, records))
    if unit is None and vault.facts.unit == "group":
        console.say(
            f"Unit: each of {vault.facts.units} groups, because groups are known. --unit record would be weaker."
        )
    shared = None
    if public is not None:
        height, width, depth = vault.facts.shape
        images = open_images(
            public, size=height if height == width else None, channels=depth, progress=progress, needs_classes=False
        )
        shared = vault.check_public(images, progress)
    budget = budget_of(job, vault.facts)
    book = account_of(vault, None if account is None else Account(account), progress)
    if images_per_group is not None:
        book.declare_images_per_group(images_per_group)
    if not resume and os.environ.get("RANK", "0") == "0":  # once, where torchrun started several processes
        _ask(console, warnings_of(vault.facts, budget), book.path, epsilon, yes=yes or as_json)
    try:
        if sample_later:
            drawn = publish_for_sampling(vault, job, out, public=shared, account=book, resume=resume, progress=progress)
            _say_run(console, out, drawn, book)
            return
        published = publish(
            vault,
            job,
            out,
            public=shared,
            account=book,
            resume=resume,
            sign_key=sign,
            about=about,
            progress=progress,
        )
    except KeyboardInterrupt:
        workspace = workspace_beside(out)
        kept = f"What was paid for is kept in {workspace}: go on with --resume." if workspace.exists() else ""
        console.warn(f"Nothing was published. {kept}")
        raise
    if published is None:
        return
    release = published
    certificate = release.certificate
    said = warnings_of(vault.facts, budget)
    for warning in certificate.warnings:
        if resume or warning not in said:
            console.warn(warning)
    for reason in certificate.reasons:
        console.warn(f"No guarantee: {reason}")
    if certificate.epsilon is not None and certificate.delta is not None:
        console.say(
            f"Guarantee: epsilon {epsilon_text(certificate.epsilon)}, delta {certificate.delta:g}, for each "
            f"{vault.facts.unit}."
        )
        _say_total(console, book, certificate.delta)
    console.say(f"Release: {out} ({len(release)} images). Check it with: veilset verify {out}")
    console.result(
        {
            "release": str(out),
            "guarantee": certificate.guarantee,
            "epsilon": certificate.epsilon,
            "delta": certificate.delta,
            "samples": len(release),
            "seconds": round(time.perf_counter() - started, 2),
            "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
            "account": str(book.path),
        }
    )


def _say_run(console: Console, out: Path, certificate: "Certificate | None", book: "Account") -> None:
    """What a run is that has no images yet."""
    if certificate is None:
        return
    for warning in certificate.warnings:
        console.warn(warning)
    if certificate.delta is not None:
        _say_total(console, book, certificate.delta)
    console.say(
        f"Run: {out}, of {certificate.samples:,} images to be made. Make them: veilset sample {out} --out RELEASE"
    )
    console.result(
        {
            "run": str(out),
            "guarantee": certificate.guarantee,
            "epsilon": certificate.epsilon,
            "delta": certificate.delta,
            "samples": certificate.samples,
            "account": str(book.path),
        }
    )


def unit_of(text: str | None, records: "Records | None" = None) -> Literal["record", "group"]:
    """`--unit` as the vault takes it. Who names groups means them, unless the unit is named, too."""
    if text is None:
        return "record" if records is None or records.groups is None else "group"
    if text not in ("record", "group"):
        raise InputError(f"Expected --unit record or group, got {text!r}.")
    return "group" if text == "group" else "record"


def _ask(console: Console, warnings: list[str], account: Path, epsilon: float, *, yes: bool) -> None:
    """Say what to expect while nothing is spent; on a terminal, let the person stop."""
    for warning in warnings:
        console.warn(f"{warning} Nothing is charged yet; see what to expect with: veilset plan")
    if not warnings or yes or not _is_terminal():
        return
    with PULSE.paused():
        agreed = typer.confirm(f"Charge epsilon {epsilon:g} to {account}?")
    if not agreed:
        raise InputError("Stopped before anything was charged. More records, a larger --epsilon or --unit may help.")


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _say_total(console: Console, book: "Account", delta: float) -> None:
    """What all runs on this data cost together, for whom."""
    limit_delta = book.limit.delta if book.limit else delta
    runs = len(book.reservations)
    total = book.spent(limit_delta)
    if total is None:
        console.warn("An earlier run on this data had no guarantee, so no total holds for the data.")
    elif runs > 1:
        console.say(
            f"All {runs} runs on this data together: epsilon {epsilon_text(total)} at {limit_delta:g}, for each "
            f"{book.unit}, if none was chosen by results. However chosen, see: veilset account {book.path}"
        )
