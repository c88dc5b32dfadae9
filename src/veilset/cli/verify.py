"""`veilset verify`: recompute what a release claims."""

from pathlib import Path
from typing import Annotated

import typer

from veilset.cli.console import Console
from veilset.cli.options import AsJson
from veilset.core.errors import VerificationError


def verify(
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="A release directory.")],
    *,
    key: Annotated[Path | None, typer.Option("--key", help="The public key that must have signed it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute epsilon from the ledger, check every hash and the signature. Exit code 5 when it does not match."""
    from veilset.release.verify import verify_release

    found = verify_release(release, key)
    console = Console(as_json=as_json)
    console.result(found.to_json())
    if not found.ok:
        for problem in found.problems:
            console.warn(problem)
        raise typer.Exit(VerificationError.exit_code)
    if found.guarantee == "none":
        console.say(f"{release} is whole, and it claims NO privacy guarantee.")
        return
    console.say(f"{release} is whole and its claim holds by its ledger:")
    console.say(f"  epsilon {found.epsilon:.4f} at delta {found.delta:g}, for each {found.unit}, {found.relation}")
    console.say(f"  recomputed: PLD {found.recomputed['pld']:.4f}, RDP {found.recomputed['rdp']:.4f}")
