"""`veilset report`: one self-contained HTML page about a release."""

from pathlib import Path
from typing import Annotated

import typer

from veilset.cli.console import Console
from veilset.cli.options import AsJson
from veilset.core.errors import InputError

Files = list[Path] | None


def report(
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="A release directory.")],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    evaluation: Annotated[Files, typer.Option("--evaluation", help="A file of veilset evaluate --out.")] = None,
    attack: Annotated[Files, typer.Option("--attack", help="A file of veilset attack --out.")] = None,
    audit: Annotated[Files, typer.Option("--audit", help="A file of veilset audit --out.")] = None,
    internal: Annotated[
        bool,
        typer.Option(
            "--internal/--public", help="Internal shows what was measured on private data; do not publish it."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a report that a data holder reads in two minutes and a reviewer in ten. It opens offline."""
    from veilset.core.files import write_whole
    from veilset.report.page import write_report

    if out.resolve().is_relative_to(release.resolve()):
        raise InputError("The report does not go into the release, which is whole as it is. Choose another --out.")
    page = write_report(
        release, evaluations=evaluation or (), attacks=attack or (), audits=audit or (), internal=internal
    )
    write_whole(out, page.encode())
    console = Console(as_json=as_json)
    which = "internal" if internal else "public"
    console.say(f"Report ({which}): {out}")
    if not internal and (evaluation or attack):
        console.say("What was measured on private data is left out of it; --internal shows it to you.")
    console.result({"report": str(out), "version": which})
