"""`veilset federate join-request`: a site makes its key at home and asks to take part."""

from pathlib import Path
from typing import Annotated

import typer

from veilset.cli.archives import View, reads_archives
from veilset.cli.console import Console
from veilset.cli.federate.common import Home, Private, declare, open_site, read_secret
from veilset.cli.options import AsJson, Delta, Epsilon, Unit
from veilset.core.errors import InputError


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
    shared_out: Annotated[
        Path | None,
        typer.Option("--share-out", help="What the office said: whom to keep. Needs --pseudonym-key."),
    ] = None,
    pseudonym_key: Annotated[
        Path | None, typer.Option("--pseudonym-key", help="The key of the pseudonyms, for --share-out.")
    ] = None,
    unit: Unit = None,
    as_json: AsJson = False,
) -> None:
    """Ask to join a federation: make a key that stays here, and a request to send. Nothing is spent."""
    from veilset.pipeline.federated.admission import KEY, REQUEST, make_request
    from veilset.pipeline.federated.pseudonyms import share_out_at

    if shared_out is not None:
        _keep_share_out(home, name, shared_out, pseudonym_key)
    told = share_out_at(home)
    number = "" if told is None else told.number
    _, _, vault = open_site(private, view, unit, home, number)
    declare(vault, units)
    own = None if key is None else read_secret(key, "Leave --key out to have one made.")
    request = make_request(home, vault.facts, name=name, epsilon=epsilon, delta=delta, key=own, share_out=number)
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


def _keep_share_out(home: Path, name: str, told: Path, key: Path | None) -> None:
    """Put what the office said into the site's home, with the key, so that every later command leaves out the same."""
    from dataclasses import replace

    from veilset.pipeline.federated.admission import REQUEST
    from veilset.pipeline.federated.pseudonyms import SHARE_OUT, ShareOut, read_key

    if key is None:
        raise InputError("--share-out names patients by a key. Add --pseudonym-key, the file that all sites share.")
    found = ShareOut.load(told)
    if found.site != name:
        raise InputError(f"{told} is for the site {found.site}, and this one is {name}.")
    if (home / REQUEST).exists():
        raise InputError(f"{home / REQUEST} exists already. Choose another --home; one home is for one federation.")
    kept = replace(found, key=read_key(key).hex())
    home.mkdir(parents=True, exist_ok=True)
    kept.save(home / SHARE_OUT)
