"""`veilset federate renew` and `revoke`: what the server's keeper does later."""

from pathlib import Path
from typing import Annotated

import typer

from veilset.cli.console import Console
from veilset.cli.federate.common import Folder, read_secret
from veilset.cli.options import AsJson


def renew(
    folder: Folder,
    *,
    hosts: Annotated[
        str | None, typer.Option("--hosts", help="More names and addresses for the certificate, by commas.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option("--address", help="A new HOST:PORT: write the invitations anew, for the same agreement."),
    ] = None,
    authority: Annotated[
        Path | None, typer.Option("--authority", help="Another authority of your own, for the new invitations.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Renew the server's certificate; with --address, the invitations, too. The agreement stays, and costs nothing."""
    from veilset.core.errors import InputError
    from veilset.pipeline.federated.admission import host_and_port
    from veilset.pipeline.federated.keys import AUTHORITY
    from veilset.pipeline.federated.server import KEYS, write_invitations
    from veilset.pipeline.federated.server import renew as renewed

    console = Console(as_json=as_json)
    more = [] if hosts is None else [host.strip() for host in hosts.split(",") if host.strip()]
    until = None
    if address is not None:
        more.append(host_and_port(address, "--address")[0])
    if authority is None:
        until = renewed(folder, more)
        console.say(f"The server's certificate is valid until {until}. Start the server again to use it.")
    elif address is None:
        raise InputError("Expected --address with --authority: both stand in the invitations.")
    if address is not None:
        vouching = read_secret(authority or folder / KEYS / AUTHORITY, "Expected a certificate in PEM.")
        for place in write_invitations(folder, address, vouching):
            console.say(f"Send {place} to its site.")
    console.result({"federation": str(folder), "valid_until": until})


def revoke(
    folder: Folder,
    site: Annotated[str, typer.Argument(metavar="SITE", help="The name of the site.")],
    *,
    why: Annotated[str, typer.Option("--why", help="For the log.")] = "its key was revoked",
    as_json: AsJson = False,
) -> None:
    """Take a site's place away, for good. What it answered so far counts; the federation goes on without it."""
    from veilset.pipeline.federated.server import revoke as revoked

    revoked(folder, site, why)
    console = Console(as_json=as_json)
    console.say(f"{site} has no place any more: {why}. A server that runs takes no more answers from it.")
    console.result({"federation": str(folder), "revoked": site})
