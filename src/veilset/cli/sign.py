"""`veilset sign`: a signature for a release that was made without one."""

from pathlib import Path
from typing import Annotated

import typer

from veilset.cli.console import Console
from veilset.cli.options import AsJson


def sign(
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="A release directory.")],
    *,
    key: Annotated[Path, typer.Option("--key", help="Your private key; make one with veilset keygen.")],
    as_json: AsJson = False,
) -> None:
    """Sign a release that you made without --sign. It is verified first; your name then stands for its claim."""
    from veilset.release.publishing import sign_release

    signer = sign_release(release, key)
    console = Console(as_json=as_json)
    console.say(f"Signed {release} by {signer}. Publish your public key elsewhere, so that people can check it.")
    console.result({"release": str(release), "signed_by": signer})
