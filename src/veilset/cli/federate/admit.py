"""`veilset federate admit`: the server's keeper gathers requests into one agreement."""

from pathlib import Path
from typing import Annotated

import typer

from veilset.cli.console import Console
from veilset.cli.federate.common import PublicImages, public_for_server, read_secret
from veilset.cli.options import AsJson, Method, Out, Preset, Seed, Settings, settings_of
from veilset.core.errors import InputError


def admit(
    requests: Annotated[list[Path], typer.Argument(metavar="REQUEST...", help="The request.json of every site.")],
    *,
    method: Method,
    address: Annotated[str, typer.Option("--address", help="HOST:PORT under which sites reach the server.")],
    out: Out,
    min_sites: Annotated[int, typer.Option("--min-sites", min=1, help="Answers of fewer sites close no round.")] = 2,
    step_seconds: Annotated[
        float, typer.Option("--step-seconds", min=0.1, help="How long a step of a training waits for its sites.")
    ] = 60.0,
    sum_seconds: Annotated[
        float, typer.Option("--sum-seconds", min=0.1, help="How long a sum that is asked once waits for all sites.")
    ] = 3600.0,
    patience: Annotated[
        float,
        typer.Option("--patience", min=1.0, help="Seconds without an answer or a server, after which one stops."),
    ] = 7200.0,
    hosts: Annotated[
        str | None, typer.Option("--hosts", help="More names and addresses for the server's certificate, by commas.")
    ] = None,
    authority: Annotated[
        Path | None,
        typer.Option("--authority", help="Your own authority's certificate in PEM; no keys are made then."),
    ] = None,
    public: PublicImages = None,
    samples: Annotated[int | None, typer.Option("--samples", min=1, help="How many images to release.")] = None,
    preset: Preset = "default",
    settings: Settings = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Admit sites: write the agreement, an invitation for each of them, and the server's own keys."""
    from veilset.pipeline.federated.admission import host_and_port, read_request
    from veilset.pipeline.federated.agreement import Rule
    from veilset.pipeline.federated.server import INVITATIONS, draw_agreement, write_federation
    from veilset.pipeline.job import Job

    host_and_port(address, "--address")
    asked = [read_request(path) for path in requests]
    if len({request.shape for request in asked}) > 1 and public is not None:
        raise InputError("The sites declare images of different shapes. All sites need the same.")
    rule = Rule(min_sites=min_sites, step_seconds=step_seconds, sum_seconds=sum_seconds, patience=patience)
    chosen = settings_of(settings)
    job = Job(method=method, epsilon=1.0, preset=preset, settings=chosen, samples=samples, seed=seed)
    agreement = draw_agreement(asked, job, rule, public_for_server(asked[0].shape, public))
    vouching = None if authority is None else read_secret(authority, "Expected a certificate in PEM.")
    more = [] if hosts is None else [host.strip() for host in hosts.split(",") if host.strip()]
    write_federation(out, agreement, address=address, hosts=more, authority=vouching)
    console = Console(as_json=as_json)
    rows = [
        [request.name, str(request.units), f"{request.epsilon:g}", f"{request.delta:g}", request.fingerprint]
        for request in asked
    ]
    console.table("Admitted: compare the fingerprints by telephone", ["site", "units", "epsilon", "delta", "key"], rows)
    if not agreement.share_out_of(agreement.members) and any(request.share_out for request in asked):
        console.warn(
            "Not all sites took part in one share-out. For a patient at several sites their epsilons add up, and the "
            "certificate will say so."
        )
    console.say(f"Send each site its file of {out / INVITATIONS}. They hold nothing secret.")
    console.say(f"Agreement {agreement.sha256[:16]}: {method}, {sum(e.count for e in agreement.plan().events)} rounds.")
    for name, value in sorted(agreement.settings.items()):
        decided = "" if chosen.get(name) == value else ", decided for a federation"
        console.say(f"  setting {name}={value}{decided}")
    console.say(f"Start with: veilset federate server {out} --out RELEASE")
    if authority is not None:
        console.say("Your authority vouches for the server: pass --certificate and --certificate-key to it.")
    console.result(
        {
            "federation": str(out),
            "agreement": agreement.sha256,
            "sites": [request.name for request in asked],
            "invitations": str(out / INVITATIONS),
        }
    )
