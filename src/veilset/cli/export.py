"""`veilset export`: a release in the form that a trainer reads."""

from pathlib import Path
from typing import Annotated

import typer

from veilset.cli.console import Console
from veilset.cli.options import AsJson, Out


def export(
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="A release directory.")],
    *,
    to: Annotated[str, typer.Option("--to", help="folder, parquet, webdataset or npz.")],
    out: Out,
    as_json: AsJson = False,
) -> None:
    """Write a verified release as a folder of images, parquet, webdataset shards or npz."""
    from veilset.release.export import export_release

    place = export_release(release, to, out)
    console = Console(as_json=as_json)
    console.say(f"Wrote {place}.")
    console.result({"export": str(place), "to": to})
