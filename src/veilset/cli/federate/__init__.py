"""`veilset federate`: any method of noisy sums over sites that keep their images."""

import typer

from veilset.cli.console import guarded
from veilset.cli.federate.admit import admit
from veilset.cli.federate.check import check
from veilset.cli.federate.join_request import join_request
from veilset.cli.federate.keeping import renew, revoke
from veilset.cli.federate.pseudonyms import pseudonyms, share_out
from veilset.cli.federate.server import server
from veilset.cli.federate.simulate import simulate
from veilset.cli.federate.site import site

federate = typer.Typer(
    name="federate",
    help="Run a method of noisy sums over several sites: each clips, noises and pays at home.",
    no_args_is_help=True,
)
for command in (join_request, admit, check, server, site, renew, revoke, pseudonyms, share_out, simulate):
    federate.command()(guarded(command))
