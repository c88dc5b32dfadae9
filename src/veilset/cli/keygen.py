"""`veilset keygen`: a key to sign releases with."""

from pathlib import Path
from typing import Annotated

import typer

from veilset.cli.console import Console
from veilset.cli.options import AsJson


def keygen(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where the private key goes; keep it secret.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Make an ed25519 key pair: FILE signs releases, FILE.pub verifies them."""
    from veilset.release.signing import generate_key

    public = generate_key(file)
    console = Console(as_json=as_json)
    console.say(f"Private key: {file} (keep it secret). Public key: {public} (publish it).")
    console.result({"private_key": str(file), "public_key": str(public)})
