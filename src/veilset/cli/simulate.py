"""`veilset federate simulate`: server and sites of a federation on one machine."""

import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from veilset.cli import options
from veilset.core.errors import InputError, VeilsetError

Samples = Annotated[int, typer.Option("--samples", min=1, help="How many images to release.")]
LOOPBACK = "127.0.0.1"


def simulate(
    private: Annotated[str, typer.Argument(metavar="PRIVATE", help="Images that are shared out over the sites.")],
    *,
    epsilon: options.Epsilon,
    out: options.Out,
    sites: Annotated[int, typer.Option("--sites", min=2, help="How many sites.")] = 4,
    delta: options.Delta = None,
    unit: options.Unit = None,
    groups: options.GroupName = None,
    account: Annotated[
        Path | None, typer.Option("--account", help="The dataset's account.", show_default="one kept for this data")
    ] = None,
    samples: Samples = 20_000,
    preset: options.Preset = "default",
    settings: options.Settings = None,
    size: options.Size = None,
    channels: options.Channels = None,
    limit: options.Limit = None,
    labels: options.LabelName = None,
    classes: options.Classes = None,
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
) -> None:
    """Run server and sites on this machine: real processes, TLS and keys on loopback, no cluster.

    The sites hold disjoint parts of the data, so they are paid for together, once, on the data's own account.
    """
    from veilset.cli.synthesize import unit_of
    from veilset.core.files import require_absent
    from veilset.data.opening import open_images
    from veilset.pipeline.federated.keys import AUTHORITY, write_keys
    from veilset.pipeline.federated.server import free_port
    from veilset.pipeline.federated.simulation import plan_simulation, reserve_simulation
    from veilset.pipeline.job import Job
    from veilset.privacy.account import Account
    from veilset.privacy.opening import account_of
    from veilset.privacy.vault import Vault

    require_flower()
    require_absent(out)
    view = options.data_options(size, channels, limit, labels, classes, seed)
    records = open_images(private, groups=groups, **view)
    vault = Vault(records, unit=unit_of(unit, records))
    job = Job(
        method="sanitized_gan",
        epsilon=epsilon,
        delta=delta,
        preset=preset,
        settings=options.settings_of(settings),
        samples=samples,
        seed=seed,
    )
    plan = plan_simulation(job, vault.facts, sites)
    workspace = out.with_name(f"{out.name}.veilset-simulation")
    require_absent(workspace)
    workspace.mkdir(parents=True)
    book = account_of(vault, None if account is None else Account(account))
    run = reserve_simulation(book, job, plan, vault)
    names = [f"site-{number}" for number in range(1, sites + 1)]
    folder = workspace / "keys"
    write_keys(folder, names, [LOOPBACK])
    address = f"{LOOPBACK}:{free_port()}"
    chosen = [f"--set={pair}" for pair in settings or []]
    command = [sys.executable, "-m", "veilset", "federate"]
    class_names = ",".join(records.class_names)
    served = [*command, "server", "--out", str(out), "--keys", str(folder), "--address", address]
    served += ["--shape", "x".join(map(str, records.shape)), "--classes", class_names, "--min-sites", str(sites)]
    served += ["--samples", str(samples), "--preset", preset, "--seed", str(seed), *chosen]
    served += ["--json"] if as_json else []
    given = {"--groups": groups, "--size": size, "--channels": channels, "--limit": limit, "--labels": labels}
    passed = [text for option, value in given.items() if value is not None for text in (option, str(value))]
    end_on_sigterm()
    children: dict[str, subprocess.Popen[bytes]] = {"server": subprocess.Popen(served)}
    try:
        for number, name in enumerate(names, start=1):
            joined = [*command, "site", private, "--name", name, "--epsilon", str(epsilon), "--server", address]
            joined += ["--authority", str(folder / AUTHORITY), "--key", str(folder / f"{name}.key")]
            joined += ["--unit", vault.facts.unit]
            joined += ["--out", str(workspace / name), "--part", f"{number}/{sites}", "--classes", class_names]
            joined += ["--account", str(book.path), "--simulation", run, "--delta", str(plan.budget.delta)]
            joined += ["--seed", str(seed), "--wait", "300", *passed]
            with (workspace / f"{name}.log").open("wb") as log:
                children[name] = subprocess.Popen(joined, stdout=log, stderr=log)
        _follow(children, workspace)
    finally:
        for child in children.values():
            child.terminate()
        for child in children.values():
            child.wait()
        book.end(run)  # what it reserved serves no other sites


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


def require_flower() -> None:
    """Refuse before any work where Flower is not installed."""
    if find_spec("flwr") is None:
        raise InputError("Flower is not installed. Install it with: pip install 'veilset[federated]'")


def end_on_sigterm() -> None:
    """Let SIGTERM unwind this process, so that it ends what it started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
