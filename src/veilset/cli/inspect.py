"""`veilset inspect`: what a source holds, as the custodian should see it before anything is spent."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilset.cli.archives import View, reads_archives
from veilset.cli.console import Console, RichProgress
from veilset.cli.options import AsJson

if TYPE_CHECKING:
    from veilset.pipeline.inspect import Inspection


@reads_archives
def inspect(
    data: Annotated[str, typer.Argument(metavar="DATA", help="The images: npz[:split], folder, DICOM archive, ...")],
    *,
    view: View,
    page: Annotated[
        Path | None, typer.Option("--page", help="Write a contact sheet (HTML). It shows PRIVATE images.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what is read from DATA, what is left out and why, and what to expect. Costs nothing; NOT for release."""
    from veilset.data.opening import open_images
    from veilset.pipeline.inspect import check_page, write_page
    from veilset.pipeline.inspect import inspect as look

    if page is not None:
        check_page(page)
    console = Console(as_json=as_json)
    records = open_images(data, progress=RichProgress(), **view)
    found = look(records)
    if page is not None:
        write_page(page, records, found)
    if not as_json:
        _show(console, found)
        if page is not None:
            console.say(f"Contact sheet: {page}. It shows private images: keep it here, delete it after use.")
    console.result(found.to_json() | {"page": None if page is None else str(page)})


def _show(console: Console, found: "Inspection") -> None:
    height, width, channels = found.shape
    console.say(f"Records: {found.records} of {height}x{width}x{channels}. What follows is not for release.")
    console.say(f"Files: {found.found} found, {found.used} used, {found.found - found.used} left out.")
    for why, count in found.ignored.items():
        console.say(f"  {count} {why}")
    title = ("Findings", "finding") if found.findings else ("Classes", "class")
    console.table(title[0], [title[1], "records"], [[name, str(count)] for name, count in found.classes.items()])
    if found.groups is not None:
        console.say(
            f"Groups: {found.groups['groups']}, with {found.groups['least']} to {found.groups['most']} images each, "
            f"in the middle {found.groups['median']:g}."
        )
    sizes = ", ".join(f"{size} ({count})" for size, count in found.sizes.items())
    console.say(f"Sizes in the files, the most frequent: {sizes}.")
    console.say(f"Protected would be each {found.unit}: {found.units}.")
    minutes = ", ".join(f"{name} {time:g}" for name, time in found.minutes.items())
    console.say(f"Rough processor minutes for 10,000 images with default settings: {minutes}.")
    for warning in found.warnings:
        console.warn(warning)
