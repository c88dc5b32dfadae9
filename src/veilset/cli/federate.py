"""`veilset federate`: the sanitized GAN over several sites, as processes of their own."""

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veilset.cli.archives import reads_archives
from veilset.cli.console import Console, RichProgress, epsilon_text, guarded
from veilset.cli.options import (
    AsJson,
    Channels,
    Classes,
    Delta,
    Epsilon,
    GroupName,
    LabelName,
    Limit,
    Out,
    Preset,
    Seed,
    Settings,
    Size,
    Unit,
    data_options,
    settings_of,
)
from veilset.cli.simulate import LOOPBACK, Samples, end_on_sigterm, require_flower, simulate
from veilset.core.errors import InputError

if TYPE_CHECKING:
    from veilset.data.archives.reading import Reading

federate = typer.Typer(
    name="federate",
    help="Train the sanitized GAN over several sites: each clips and noises at home.",
    no_args_is_help=True,
)
federate.command()(guarded(simulate))

Keys = Annotated[Path, typer.Option("--keys", help="Folder of `veilset federate keys`.")]
MinSites = Annotated[int, typer.Option("--min-sites", min=1, help="Fewer answers make no step.")]
Patience = Annotated[float, typer.Option("--patience", help="Seconds to wait for that many sites.")]
RoundSeconds = Annotated[float, typer.Option("--round-seconds", help="Seconds to wait for a site's answer.")]


@federate.command()
@guarded
def keys(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write; must not exist yet.")],
    *,
    sites: Annotated[str, typer.Option("--sites", help="Names of the sites, separated by commas.")],
    hosts: Annotated[str, typer.Option("--hosts", help="Names and addresses of the server.")] = "localhost,127.0.0.1",
    as_json: AsJson = False,
) -> None:
    """Write the server's certificate and a key for every site."""
    from veilset.pipeline.federated.keys import AUTHORITY, write_keys

    names = [name.strip() for name in sites.split(",") if name.strip()]
    write_keys(folder, names, [host.strip() for host in hosts.split(",")])
    console = Console(as_json=as_json)
    console.say(f"Give each site its own .key and {AUTHORITY}, by a safe way; keep server.key on the server alone.")
    console.result({"keys": str(folder), "sites": names})


@federate.command()
@guarded
def server(
    *,
    out: Out,
    keys: Keys,
    shape: Annotated[str, typer.Option("--shape", help="Height x width x channels of all sites' images.")],
    classes: Annotated[str, typer.Option("--classes", help="Class names in the order of the labels, by commas.")],
    site_keys: Annotated[
        list[Path] | None, typer.Option("--site-key", help="Public key of a site.", show_default="all in --keys")
    ] = None,
    address: Annotated[str, typer.Option("--address", help="Host and port to listen on.")] = f"{LOOPBACK}:9092",
    min_sites: MinSites = 2,
    patience: Patience = 600.0,
    round_seconds: RoundSeconds = 120.0,
    samples: Samples = 20_000,
    preset: Preset = "default",
    settings: Settings = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Run the server: it trains a generator on the noised answers of sites, and writes the release to --out."""
    from veilset.cli.plan import shape_of
    from veilset.core.files import require_absent
    from veilset.methods.sanitized_gan.config import SanitizedGan
    from veilset.pipeline.federated.server import run_server

    require_flower()
    require_absent(out)
    if not keys.is_dir():
        raise InputError(f"There is no folder {keys}. Write keys with: veilset federate keys {keys} --sites NAMES")
    method = SanitizedGan.configure(preset, settings_of(settings))  # refuse a bad one before anything is started
    job = {
        "settings": {name: str(value) for name, value in method.settings.plain().items()},
        "shape": shape_of(shape),
        "class_names": [name.strip() for name in classes.split(",")],
        "seed": seed,
        "min_sites": min_sites,
        "patience": patience,
        "round_seconds": round_seconds,
        "samples": samples,
        "out": str(out.resolve()),
    }
    console = Console(as_json=as_json)
    started = time.perf_counter()
    heard: dict[str, Any] = {}

    def report(status: Mapping[str, Any]) -> None:
        heard.update(status)
        typer.echo(f"step {status['step']}: {status['sites']} sites", err=True)

    end_on_sigterm()
    workspace = out.with_name(f"{out.name}.veilset-server")
    result = run_server(
        job,
        workspace=workspace,
        keys=keys,
        sites=site_keys or sorted(keys.glob("*.pub")),
        address=address,
        report=report,
    )
    console.say(f"Release: {out}. Check it with: veilset verify {out}")
    console.say(
        f"Bytes of a step: {result['bytes_sent']} to {result['sites']} sites, {result['bytes_received']} from them."
    )
    seconds = round(time.perf_counter() - started, 1)
    console.result({"release": str(out), "seconds": seconds, "workspace": str(workspace), **result})


@federate.command()
@guarded
@reads_archives
def site(
    private: Annotated[str, typer.Argument(metavar="PRIVATE", help="This site's images: npz[:split], folder, ...")],
    *,
    name: Annotated[str, typer.Option("--name", help="What this site is called.")],
    epsilon: Epsilon,
    server: Annotated[str, typer.Option("--server", help="Host and port of the server.")],
    authority: Annotated[Path, typer.Option("--authority", help="The authority's certificate, authority.pem.")],
    key: Annotated[Path, typer.Option("--key", help="This site's private key.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for ledger, certificate and generator.")],
    delta: Delta = None,
    unit: Unit = None,
    groups: GroupName = None,
    account: Annotated[Path | None, typer.Option("--account", help="The dataset's account.")] = None,
    units: Annotated[
        int | None,
        typer.Option("--units", min=10, help="Number of units that is declared public.", show_default="as many as are"),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="KEY=MOST", help="The most that the server may propose of a setting."),
    ] = None,
    answer_every: Annotated[
        float | None,
        typer.Option(
            "--answer-every",
            min=0.01,
            help="Seconds from a question to its answer, the same for all.",
            show_default="twice what random images take",
        ),
    ] = None,
    wait: Annotated[float, typer.Option("--wait", min=0.0, help="Seconds to try until the server is there.")] = 10.0,
    part: Annotated[
        str | None, typer.Option("--part", help="K/N: keep the K-th of N parts of the units, for simulations.")
    ] = None,
    simulation: Annotated[str | None, typer.Option("--simulation", hidden=True)] = None,
    size: Size = None,
    channels: Channels = None,
    limit: Limit = None,
    labels: LabelName = None,
    classes: Classes = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    reading: "Reading | None" = None,
) -> None:
    """Join a federation: answer the server with noised gradients until it ends or the plan is spent."""
    require_flower()
    from safetensors.torch import save_file

    from veilset.cli.synthesize import unit_of
    from veilset.core.files import write_whole
    from veilset.data.opening import open_images
    from veilset.pipeline.federated.connection import serve_site
    from veilset.pipeline.federated.parts import part_of
    from veilset.pipeline.federated.proposal import Bounds
    from veilset.pipeline.federated.simulation import covered_by, numbers_of, site_facts
    from veilset.pipeline.federated.site import Site
    from veilset.privacy.account import Account
    from veilset.privacy.opening import account_of
    from veilset.privacy.vault import Vault

    for path in (authority, key):
        if not path.is_file():
            raise InputError(f"{path} is missing. Ask the server's keeper for it: veilset federate keys")
    bounds = Bounds(most={name: _number(name, text) for name, text in settings_of(allow, "--allow").items()})
    options = data_options(size, channels, limit, labels, classes, seed, reading)
    records = open_images(private, groups=groups, progress=RichProgress(), **options)
    whole = Vault(records, unit=unit_of(unit, records))
    book = account_of(whole, None if account is None else Account(account))  # of all the data, also for a part of it
    vault, covered = whole, None
    if part is not None:
        number, count = numbers_of(part)
        vault = Vault(part_of(records, number, count), unit=whole.facts.unit)
        vault.facts = site_facts(whole.facts, number, count)
        covered = None if simulation is None else covered_by(book, simulation, number, whole)
    if units is not None:
        vault.facts = dataclasses.replace(vault.facts, units=units)
    out.mkdir(parents=True, exist_ok=True)
    console = Console(as_json=as_json)
    own = Site(
        name,
        vault,
        epsilon=epsilon,
        delta=delta,
        workspace=out,
        account=book,
        bounds=bounds,
        covered=covered,
    )

    def keep_generator(weights: Mapping[str, Any]) -> None:
        save_file({label: tensor.contiguous() for label, tensor in weights.items()}, out / "generator.safetensors")

    try:
        serve_site(
            own,
            server=server,
            authority=authority.read_bytes(),
            key=key.read_bytes(),
            report=console.say,
            keep_generator=keep_generator,
            answer_every=answer_every,
            at_once=covered is not None,
            wait=wait,
        )
        certificate = own.certificate()
        write_whole(out / "certificate.json", certificate.to_bytes())
        console.say(
            f"{name}: epsilon {epsilon_text(certificate.epsilon)}, delta {certificate.delta:g}, for each "
            f"{vault.facts.unit}. Certificate: {out / 'certificate.json'}"
        )
        console.result(
            {
                "site": name,
                "certificate": str(out / "certificate.json"),
                "epsilon": certificate.epsilon,
                "delta": certificate.delta,
            }
        )
    finally:
        own.close()


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"Expected --allow {name}=NUMBER, got {text!r}.") from None
