"""`veilset verify`: recompute what a release claims."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilset.cli.console import Console
from veilset.cli.options import AsJson
from veilset.core.errors import InputError, VerificationError

if TYPE_CHECKING:
    from veilset.release.verify import Verification


def verify(
    release: Annotated[Path | None, typer.Argument(metavar="RELEASE", help="A release directory.")] = None,
    *,
    key: Annotated[Path | None, typer.Option("--key", help="The public key that must have signed it.")] = None,
    site_keys: Annotated[
        list[Path] | None,
        typer.Option(
            "--site-key", help="Of a federation: a site's public key, or its request. Every site must have signed."
        ),
    ] = None,
    require_signature: Annotated[
        bool, typer.Option("--require-signature", help="Fail (exit code 5) when the release is not signed.")
    ] = False,
    require_guarantee: Annotated[
        bool, typer.Option("--require-guarantee", help="Fail (exit code 5) when the release has no guarantee.")
    ] = False,
    sample: Annotated[
        int | None,
        typer.Option(
            "--sample", min=1, help="Of a release in shards, check so many, drawn at random; the others may be absent."
        ),
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of certificate.json; give no RELEASE.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Recompute epsilon from the ledger, check every hash and the signature. Exit code 5 when it does not match."""
    from veilset.release.verify import verify_release

    if schema:
        if release is not None:
            raise InputError("--schema is the same for every release. Leave RELEASE out.")
        _print_schema()
        return
    if release is None:
        raise InputError("Expected RELEASE, a release directory: veilset verify RELEASE")
    found = verify_release(release, key, sample=sample)
    if require_signature and found.ok and found.signed_by is None:
        found.problems.append("It is not signed, so anyone may have made it, and --require-signature was given.")
    if site_keys and found.certificate is not None and found.ok:
        from veilset.release.statements import unknown_signers

        found.problems += unknown_signers(found.certificate.header, [_public_key(path) for path in site_keys])
    if require_guarantee and found.guarantee == "none":
        found.problems.append("It has no privacy guarantee, and --require-guarantee was given.")
    console = Console(as_json=as_json)
    console.result(found.to_json())
    if not found.ok:
        console.say(f"FAILED: {release} is not what it should be.")
        for problem in found.problems:
            console.say(f"  - {problem}")
        raise typer.Exit(VerificationError.exit_code)
    if found.guarantee == "none":
        console.say(f"OK, {_signer(found, key)}, NO GUARANTEE: {release} is whole, and it claims NO privacy guarantee.")
    else:
        console.say(f"OK, {_signer(found, key)}: {release} is whole and its claim holds by its ledger:")
        console.say(f"  epsilon {found.epsilon:.4g} at delta {found.delta:g}, for each {found.unit}, {found.relation}")
        console.say(f"  recomputed: PLD {found.recomputed['pld']:.4g}, RDP {found.recomputed['rdp']:.4g}")
    if found.signed_by is None:
        console.say("  UNSIGNED: anyone may have made it. Who did is known by a signature and the publisher's key.")
    elif key is None:
        console.say("  That key came with the release. Pass --key with the publisher's own to know whose it is.")
    for note in found.notes:
        console.say(f"  Note: {note}")


def _public_key(path: Path) -> str:
    """A site's public key from its own file, or from the request that the site sent."""
    try:
        text = path.read_text(encoding="utf-8")
        return str(json.loads(text)["request"]["key"]) if text.lstrip().startswith("{") else text
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} holds no site's public key ({type(error).__name__}).") from error


def _print_schema() -> None:
    from veilset.release.schema import certificate_schema

    typer.echo(json.dumps(certificate_schema(), indent=2))


def _signer(found: "Verification", key: Path | None) -> str:
    if found.signed_by is None:
        return "UNSIGNED"
    return f"signed by {found.signed_by}" + ("" if key is None else f", the owner of {key.name}")
