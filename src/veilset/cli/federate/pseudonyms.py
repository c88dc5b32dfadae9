"""`veilset federate pseudonyms` and `share-out`: a patient who is at several sites is kept at one of them."""

from pathlib import Path
from typing import Annotated

import typer

from veilset.cli.archives import View, reads_archives
from veilset.cli.console import Console
from veilset.cli.federate.common import Private, open_vault
from veilset.cli.options import AsJson, Out


@reads_archives
def pseudonyms(
    private: Private,
    *,
    view: View,
    name: Annotated[str, typer.Option("--name", help="What this site is called.")],
    key: Annotated[Path, typer.Option("--key", help="The file with the key that all sites share.")],
    out: Out,
    make_key: Annotated[bool, typer.Option("--new-key", help="Make the key: one site does, and hands it on.")] = False,
    as_json: AsJson = False,
) -> None:
    """List this site's patients under a shared key, for an office that shares them out. Nothing is spent."""
    from veilset.core.files import require_absent
    from veilset.pipeline.federated.pseudonyms import new_key, pseudonyms_of, read_key

    require_absent(out)
    if make_key:
        new_key(key)
    records, _ = open_vault(private, view, "group")
    found = pseudonyms_of(records, name, read_key(key))
    found.save(out)
    console = Console(as_json=as_json)
    console.say(f"Send {out} to the office that shares patients out, and to nobody who has the key.")
    console.say(f"Hand {key} to the other sites by a safe way; whoever has it and a list can look for any name.")
    console.result({"out": str(out), "name": name, "key": str(key)})


def share_out(
    lists: Annotated[list[Path], typer.Argument(metavar="LIST...", help="The pseudonyms of every site.")],
    *,
    out: Out,
    as_json: AsJson = False,
) -> None:
    """Keep each patient at one site: for an office without the key, which is no site and not the server's keeper."""
    from veilset.core.files import require_absent
    from veilset.pipeline.federated.pseudonyms import Pseudonyms, share_out

    told = share_out([Pseudonyms.load(path) for path in lists])
    require_absent(out)
    out.mkdir(mode=0o700, parents=True)
    for one in told:
        one.save(out / f"{one.site}.json")
    console = Console(as_json=as_json)
    console.say(f"Share-out {told[0].number}: send each site its own file of {out}, and delete the lists.")
    console.result({"out": str(out), "number": told[0].number, "sites": [one.site for one in told]})
