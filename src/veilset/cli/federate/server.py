"""`veilset federate server`: ask the sites, combine what they answer, write the release."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from veilset.cli.console import Console
from veilset.cli.federate.common import Folder, PublicImages, end_on_sigterm, public_for_server, require_flower
from veilset.cli.options import AsJson, Device, Out, check_device
from veilset.core.errors import InputError


def server(
    folder: Folder,
    *,
    out: Out,
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="To be sure: must be the agreement's.", show_default=False)
    ] = None,
    bind: Annotated[
        str | None,
        typer.Option("--bind", help="HOST:PORT to listen on.", show_default="the invitations' port, on all addresses"),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="The server's certificate of your own authority, in PEM.")
    ] = None,
    certificate_key: Annotated[Path | None, typer.Option("--certificate-key", help="Its private key, in PEM.")] = None,
    public: PublicImages = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Serve a federation until its release is written to --out. After a kill, the same command goes on."""
    require_flower()
    from veilset.pipeline.federated.admission import host_and_port, read_invitation
    from veilset.pipeline.federated.server import INVITATIONS, read_agreement, serve

    check_device(device)
    agreement = read_agreement(folder)
    if method is not None and method != agreement.method:
        raise InputError(f"The agreement in {folder} is about {agreement.method}, not {method}. Admit the sites anew.")
    if (certificate is None) != (certificate_key is None):
        raise InputError("Expected both --certificate and --certificate-key, or neither.")
    if bind is None:
        first = read_invitation(folder / INVITATIONS / f"{agreement.members[0].name}.json")
        bind = f"0.0.0.0:{host_and_port(first.address, 'an address as')[1]}"
    console = Console(as_json=as_json)
    started = time.perf_counter()
    end_on_sigterm()
    result = serve(
        folder,
        out,
        bind=bind,
        report=_log,
        public=public_for_server(agreement.shape, public),
        certificate=certificate,
        key=certificate_key,
        device=device,
    )
    console.say(f"Release: {out}. Check it with: veilset verify {out}")
    console.say(f"Bytes: {result['bytes_sent']} to {len(result['sites'])} sites, {result['bytes_received']} from them.")
    console.result({"release": str(out), "seconds": round(time.perf_counter() - started, 1), **result})


def _log(status: Mapping[str, Any]) -> None:
    """A line for the log: public facts alone."""
    typer.echo(f"{datetime.now(UTC).isoformat(timespec='seconds')} {_words(status)}", err=True)


def _words(status: Mapping[str, Any]) -> str:
    if "listening" in status:
        return f"listening on {status['listening']} for the agreement {status['agreement'][:16]}"
    if "round" in status:
        return f"round {status['round']} of {status['rounds']}: {', '.join(status['sites'])}"
    if "refused" in status:
        return f"{status['refused']} does not take part: {status['why']}"
    return f"{status['banned']} has lost its place: {status['why']}"
