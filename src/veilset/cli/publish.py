"""`veilset publish`: the last look at a release, and the folder to upload."""

from pathlib import Path
from typing import Annotated

import typer

from veilset.cli.console import Console
from veilset.cli.options import AsJson, Description, Licence, Publisher, Title, about_options
from veilset.core.errors import InputError, VerificationError


def publish(
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="A release directory.")],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check only; write nothing.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A new folder to upload.")] = None,
    to: Annotated[
        str, typer.Option("--to", help="The form of that folder: hf, folder, parquet, webdataset, npz.")
    ] = "hf",
    key: Annotated[Path | None, typer.Option("--key", help="The public key that must have signed it.")] = None,
    title: Title = None,
    licence: Licence = None,
    publisher: Publisher = None,
    description: Description = None,
    as_json: AsJson = False,
) -> None:
    """Check that a release can go out: signed, verified, nothing internal, a licence, a complete card.

    With --out it then writes the folder to upload. Nothing is ever sent anywhere.
    """
    from veilset.release.about import About
    from veilset.release.export import export_release
    from veilset.release.publishing import readiness

    if dry_run == (out is not None):
        raise InputError("Expected either --dry-run, to check only, or --out DIR, to write the folder to upload.")
    said = about_options(title, licence, publisher, description)
    About().but(**said)  # refused before any work
    found = readiness(release, key=key)
    if said and found.is_sound:
        found = readiness(release, key=key, about=found.about.but(**said))
    console = Console(as_json=as_json)
    for check in found.checks:
        console.say(f"{'ok     ' if check.ok else 'MISSING'}  {check.name}: {check.text}")
    result = {
        "ok": found.ok,
        "checks": [{"name": check.name, "ok": check.ok, "text": check.text} for check in found.checks],
        "out": str(out) if found.ok and out is not None else None,
    }
    if found.ok and out is not None:
        export_release(release, to, out, about=found.about)
        console.say(f"Wrote {out}: upload this folder. Publish your public key elsewhere, so that people can check it.")
    console.result(result)
    if not found.ok:
        console.say("Not ready: nothing was written.")
        raise typer.Exit(InputError.exit_code if found.is_sound else VerificationError.exit_code)
    if dry_run:
        console.say("Ready. Write the folder to upload with: veilset publish RELEASE --out DIR")
