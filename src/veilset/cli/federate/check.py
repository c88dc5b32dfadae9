"""`veilset federate check`: a dry run of a site. Nothing is paid, and nothing about the images leaves."""

import time
from typing import Annotated

import typer

from veilset.cli.archives import View, reads_archives
from veilset.cli.console import Console
from veilset.cli.federate.common import (
    AccountFile,
    Authority,
    Home,
    InvitationFile,
    Private,
    PublicImages,
    ServerAddress,
    declare,
    open_site,
    public_for,
    read_secret,
    require_flower,
)
from veilset.cli.options import AsJson, Unit


@reads_archives
def check(
    private: Private,
    *,
    view: View,
    home: Home,
    invitation: InvitationFile,
    server: ServerAddress = None,
    authority: Authority = None,
    public: PublicImages = None,
    account: AccountFile = None,
    offline: Annotated[bool, typer.Option("--offline", help="Leave the server out: it does not run yet.")] = False,
    unit: Unit = None,
    as_json: AsJson = False,
) -> None:
    """Try everything that a site needs: invitation, data, account, server, TLS, clock, versions. Nothing is spent."""
    require_flower()
    from veilset.pipeline.federated.admission import KEY, REQUEST, read_invitation, read_request
    from veilset.pipeline.federated.reaching import reach
    from veilset.pipeline.federated.site import check_data
    from veilset.privacy.account import Account
    from veilset.privacy.sources import account_of

    console = Console(as_json=as_json)
    request, invited = read_request(home / REQUEST), read_invitation(invitation)
    key = read_secret(home / KEY, "Make it with: veilset federate join-request")
    invited.check(request)
    agreement, member = invited.agreement, invited.agreement.member(request.name)
    plan = agreement.plan_of(member)
    rounds = sum(event.count for event in plan.events)
    console.say(f"Agreement {agreement.sha256[:16]}: compare these digits with the other sites by telephone.")
    console.say(
        f"  {agreement.method} ({agreement.preset}), {rounds} rounds, {len(agreement.members)} sites, of which "
        f"{agreement.rule.min_sites} are enough; seed {agreement.seed}"
    )
    for name, value in sorted(agreement.settings.items()):
        console.say(f"  setting {name}={value}")
    console.say(f"  this site spends epsilon {member.epsilon:g} at delta {member.delta:g}, for each {agreement.unit}")

    if not offline:
        vouching = invited.authority.encode() if authority is None else read_secret(authority, "Expected PEM.")
        began = time.perf_counter()
        found = reach(server or invited.address, vouching, key, name=request.name, agreement=agreement.sha256)
        console.say(f"Server: reached in {time.perf_counter() - began:.1f} s; TLS, key and agreement are right.")
        console.say(f"  clocks differ by {abs(found.clock):.1f} s; round {found.health['round']} of {rounds}")
        for warning in found.warnings:
            console.warn(warning)

    _, whole, vault = open_site(private, view, unit, home, request.share_out)
    there = vault.facts.units
    declare(vault, member.units)
    check_data(agreement, vault, public_for(vault, public))
    console.say(f"Data: as in the agreement; {there} units are there, {member.units} are declared.")
    book = account_of(whole, None if account is None else Account(account))
    book.check_room(plan, unit=agreement.unit)
    console.say(f"Account: {book.path} has room for this plan. Nothing was spent.")
    console.result({"ok": True, "agreement": agreement.sha256, "site": request.name, "rounds": rounds})
