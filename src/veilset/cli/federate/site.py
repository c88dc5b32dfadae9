"""`veilset federate site`: answer a federation's server with noised sums until it ends."""

import time
from collections.abc import Callable
from typing import Annotated

import typer

from veilset.cli.archives import View, reads_archives
from veilset.cli.console import Console, RichProgress, epsilon_text
from veilset.cli.federate.common import (
    AccountFile,
    Authority,
    Home,
    InvitationFile,
    Private,
    PublicImages,
    ServerAddress,
    end_on_sigterm,
    open_site,
    public_for,
    read_secret,
    require_flower,
)
from veilset.cli.options import AsJson, Device, Unit, check_device


@reads_archives
def site(
    private: Private,
    *,
    view: View,
    home: Home,
    invitation: InvitationFile,
    server: ServerAddress = None,
    authority: Authority = None,
    public: PublicImages = None,
    account: AccountFile = None,
    answer_every: Annotated[
        float | None,
        typer.Option(
            "--answer-every",
            min=0.01,
            help="Seconds from a question to its answer, the same for all.",
            show_default="twice what random images take",
        ),
    ] = None,
    wait: Annotated[float, typer.Option("--wait", min=0.0, help="Seconds to try until the server is there.")] = 0.0,
    part: Annotated[
        str | None, typer.Option("--part", help="K/N: keep the K-th of N parts of the units, for simulations.")
    ] = None,
    simulation: Annotated[str | None, typer.Option("--simulation", hidden=True)] = None,
    unit: Unit = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Take part in a federation: answer with noised sums until the server ends it. After a kill, start it again."""
    require_flower()
    from veilset.core.files import write_whole
    from veilset.pipeline.federated.admission import KEY, REQUEST, read_invitation, read_request
    from veilset.pipeline.federated.connection import serve_site
    from veilset.pipeline.federated.desk import Desk
    from veilset.pipeline.federated.parts import part_of
    from veilset.pipeline.federated.reaching import reach_within
    from veilset.pipeline.federated.schedule import Clock
    from veilset.pipeline.federated.simulation import covered_by, numbers_of
    from veilset.pipeline.federated.site import Site
    from veilset.privacy.account import Account
    from veilset.privacy.sources import account_of
    from veilset.privacy.vault import Vault

    check_device(device)
    console = Console(as_json=as_json)
    request, invited = read_request(home / REQUEST), read_invitation(invitation)
    key = read_secret(home / KEY, "Make it with: veilset federate join-request")
    invited.check(request)
    agreement, name = invited.agreement, request.name
    vouching = invited.authority.encode() if authority is None else read_secret(authority, "Expected PEM.")
    address = server or invited.address
    reached = reach_within(wait, address, vouching, key, name=name, agreement=agreement.sha256)
    for warning in reached.warnings:
        console.warn(warning)

    records, whole, vault = open_site(private, view, unit, home, request.share_out)
    book = account_of(whole, None if account is None else Account(account))  # of all the data, also for a part of it
    covered = None
    if part is not None:
        number, count = numbers_of(part)
        vault = Vault(part_of(records, number, count), unit=whole.facts.unit)
        covered = None if simulation is None else covered_by(book, simulation, number, whole)
    end_on_sigterm()
    own = Site(
        name,
        agreement,
        vault,
        key=key,
        workspace=home / "run",
        account=book,
        public=public_for(vault, public),
        covered=covered,
        progress=RichProgress(),
        device=device,
    )
    try:
        desk = Desk(own, _logged(console), answer_every=answer_every, clock=None if covered else Clock())
        serve_site(
            desk,
            server=address,
            authority=vouching,
            key=key,
            report=_logged(console),
            patience=agreement.rule.patience,
        )
        assert desk.certificate is not None
        write_whole(home / "certificate.json", desk.certificate.to_bytes())
        console.say(
            f"{name}: epsilon {epsilon_text(desk.certificate.epsilon)}, delta {desk.certificate.delta:g}, for each "
            f"{vault.facts.unit}; {len(own.answered)} of {own.rounds} rounds were answered. Certificate: "
            f"{home / 'certificate.json'}"
        )
        console.result(
            {
                "site": name,
                "certificate": str(home / "certificate.json"),
                "epsilon": desk.certificate.epsilon,
                "delta": desk.certificate.delta,
                "answered": len(own.answered),
                "rounds": own.rounds,
            }
        )
    finally:
        own.close()


def _logged(console: Console) -> Callable[[str], None]:
    return lambda text: console.say(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}")
