"""`veilset export`: a release in the form that a trainer reads."""

from pathlib import Path
from typing import Annotated

import typer

from veilset.cli.console import Console
from veilset.cli.options import AsJson, Description, Licence, Out, Publisher, Title, about_options


def export(
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="A release directory.")],
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="A folder: hf (Hugging Face), folder (of images), parquet, webdataset, npz. One file: npz (--out "
            "x.npz), croissant, label, datasheet, registry.",
        ),
    ],
    out: Out,
    title: Title = None,
    licence: Licence = None,
    publisher: Publisher = None,
    description: Description = None,
    as_json: AsJson = False,
) -> None:
    """Write a verified release in a form that other tools read, or describe it in one."""
    from veilset.release import layout
    from veilset.release.export import export_release
    from veilset.release.format import read_about

    said = about_options(title, licence, publisher, description)
    layout.require_release(release)
    place = export_release(release, to, out, about=read_about(release).but(**said) if said else None)
    console = Console(as_json=as_json)
    console.say(f"Wrote {place}.")
    console.result({"export": str(place), "to": to})
