"""`veilset federate join-request`: a site makes its key at home and asks to take part."""

from pathlib import Path
from typing import Annotated

import typer

from veilset.cli.archives import View, reads_archives
from veilset.cli.console import Console
from veilset.cli.federate.common import Home, Private, declare, open_vault, read_secret
from veilset.cli.options import AsJson, Delta, Epsilon, Unit


@reads_archives
def join_request(
    private: Private,
    *,
    view: View,
    name: Annotated[str, typer.Option("--name", help="What this site is called.")],
    epsilon: Epsilon,
    home: Home,
    delta: Delta = None,
    units: Annotated[
        int | None,
        typer.Option("--units", min=10, help="Number of units that is declared public.", show_default="as many as are"),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", help="An elliptic-curve key of your own.", show_default="a new one")
    ] = None,
    unit: Unit = None,
    as_json: AsJson = False,
) -> None:
    """Ask to join a federation: make a key that stays here, and a request to send. Nothing is spent."""
    from veilset.pipeline.federated.admission import KEY, REQUEST, make_request

    _, vault = open_vault(private, view, unit)
    declare(vault, units)
    own = None if key is None else read_secret(key, "Leave --key out to have one made.")
    request = make_request(home, vault.facts, name=name, epsilon=epsilon, delta=delta, key=own)
    console = Console(as_json=as_json)
    console.say(
        f"{name} declares {request.units} units ({request.unit}), epsilon {epsilon:g}, delta {request.delta:g}, images "
        f"of {'x'.join(map(str, request.shape))} and {len(request.class_names)} classes. All of this will be public."
    )
    console.say(f"Send {home / REQUEST} to the server's keeper. Keep {home / KEY} here.")
    console.say(f"Read this fingerprint to the keeper by telephone: {request.fingerprint}")
    console.result(
        {
            "request": str(home / REQUEST),
            "name": name,
            "fingerprint": request.fingerprint,
            "units": request.units,
            "epsilon": epsilon,
            "delta": request.delta,
        }
    )
