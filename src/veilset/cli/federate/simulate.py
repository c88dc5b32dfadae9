"""`veilset federate simulate`: server and sites of a federation on one machine."""

import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilset.cli import options
from veilset.cli.archives import arguments_of, reads_archives
from veilset.cli.federate.common import (
    PublicImages,
    end_on_sigterm,
    open_vault,
    public_for,
    require_flower,
    signals_held,
)
from veilset.core.errors import VeilsetError

if TYPE_CHECKING:
    from veilset.data.archives.reading import Reading

LOOPBACK = "127.0.0.1"
_PATIENCE = 600.0
_ENDING_SECONDS = 20.0


@reads_archives
def simulate(
    private: Annotated[str, typer.Argument(metavar="PRIVATE", help="Images that are shared out over the sites.")],
    *,
    epsilon: options.Epsilon,
    out: options.Out,
    method: options.Method = "merf",
    sites: Annotated[int, typer.Option("--sites", min=2, help="How many sites.")] = 4,
    delta: options.Delta = None,
    unit: options.Unit = None,
    groups: options.GroupName = None,
    public: PublicImages = None,
    account: Annotated[
        Path | None, typer.Option("--account", help="The dataset's account.", show_default="one kept for this data")
    ] = None,
    samples: Annotated[int | None, typer.Option("--samples", min=1, help="How many images to release.")] = None,
    preset: options.Preset = "default",
    settings: options.Settings = None,
    size: options.Size = None,
    channels: options.Channels = None,
    limit: options.Limit = None,
    labels: options.LabelName = None,
    classes: options.Classes = None,
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
    reading: "Reading | None" = None,
) -> None:
    """Run server and sites on this machine: real processes, TLS and keys on loopback, no cluster.

    The sites hold disjoint parts of the data, so they are paid for together, once, on the data's own account.
    """
    require_flower()
    from veilset.core.files import require_absent
    from veilset.pipeline.federated.admission import make_request
    from veilset.pipeline.federated.agreement import Rule
    from veilset.pipeline.federated.parts import declared_units
    from veilset.pipeline.federated.server import INVITATIONS, draw_agreement, free_port, write_federation
    from veilset.pipeline.federated.simulation import reserve_simulation
    from veilset.pipeline.job import Job, budget_of
    from veilset.privacy.account import Account
    from veilset.privacy.sources import account_of

    require_absent(out)
    view = options.data_options(size, channels, limit, labels, classes, seed, reading) | {"groups": groups}
    records, vault = open_vault(private, view, unit)
    shared = public_for(vault, public)
    chosen = options.settings_of(settings)
    job = Job(method=method, epsilon=epsilon, delta=delta, preset=preset, settings=chosen, samples=samples, seed=seed)
    workspace = out.with_name(f"{out.name}.veilset-simulation")
    require_absent(workspace)
    common = budget_of(job, vault.facts).delta
    requests = []
    for number in range(1, sites + 1):
        facts = replace(vault.facts, units=declared_units(vault.facts.units, number, sites))
        home = workspace / f"site-{number}"
        requests.append(make_request(home, facts, name=home.name, epsilon=epsilon, delta=common))
    rule = Rule(min_sites=sites, step_seconds=_PATIENCE, sum_seconds=_PATIENCE, patience=_PATIENCE)
    agreement = draw_agreement(requests, job, rule, shared)
    address = f"{LOOPBACK}:{free_port()}"
    write_federation(workspace / "server", agreement, address=address)
    book = account_of(vault, None if account is None else Account(account))
    run = reserve_simulation(book, agreement, vault)

    command = [sys.executable, "-m", "veilset", "federate"]
    served = [*command, "server", str(workspace / "server"), "--out", str(out), "--bind", address]
    served += ["--json"] if as_json else []
    given = {"--groups": groups, "--size": size, "--channels": channels, "--limit": limit, "--labels": labels}
    names = classes if vault.facts.findings else ",".join(records.class_names)
    shown = {**given, "--public": public, "--unit": vault.facts.unit, "--classes": names}
    passed = [text for option, value in shown.items() if value is not None for text in (option, str(value))]
    passed += [] if reading is None else arguments_of(reading)
    served += [] if public is None else ["--public", public]
    sharing = ["--account", str(book.path), "--simulation", run, "--seed", str(seed), "--wait", "300", *passed]
    joined: dict[str, list[str]] = {}
    for number in range(1, sites + 1):
        home = workspace / f"site-{number}"
        invitation = workspace / "server" / INVITATIONS / f"{home.name}.json"
        place = ["--home", str(home), "--part", f"{number}/{sites}", "--invitation", str(invitation)]
        joined[home.name] = [*command, "site", private, *place, *sharing]
    end_on_sigterm()
    children: dict[str, subprocess.Popen[bytes]] = {}
    try:
        with signals_held():
            children["server"] = subprocess.Popen(served)
            for name, words in joined.items():
                with (workspace / f"{name}.log").open("wb") as log:
                    children[name] = subprocess.Popen(words, stdout=log, stderr=log)
        _follow(children, workspace)
    finally:
        _end(children.values())
        book.end(run)  # what it reserved serves no other sites


def _end(children: "Iterable[subprocess.Popen[bytes]]") -> None:
    """End what is still at work; what does not hear it within a while is killed, which costs nothing more."""
    alive = [child for child in children if child.poll() is None]
    for child in alive:
        child.terminate()
    deadline = time.monotonic() + _ENDING_SECONDS
    for child in alive:
        try:
            child.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _follow(children: "Mapping[str, subprocess.Popen[bytes]]", workspace: Path) -> None:
    """Wait for the server and then for the sites; a site that fails before the server ends all."""
    server, sites = children["server"], {name: child for name, child in children.items() if name != "server"}
    while server.poll() is None:
        failed = [name for name, child in sites.items() if child.poll()]
        if failed:
            raise VeilsetError(f"{failed[0]} failed. Its log: {workspace / failed[0]}.log")
        time.sleep(0.2)
    if server.returncode != 0:
        raise VeilsetError(f"The federation failed. Logs are in {workspace}.")
    for name, child in sites.items():
        try:
            child.wait(60)
        except subprocess.TimeoutExpired:
            raise VeilsetError(f"{name} did not end. Its log: {workspace / name}.log") from None
