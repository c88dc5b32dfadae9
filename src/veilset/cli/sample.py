"""`veilset sample`: the images of a run, in units that any process or machine can make."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from veilset.cli.console import Console, RichProgress
from veilset.cli.options import AsJson, Description, Licence, Publisher, Title, about_options
from veilset.core.errors import InputError
from veilset.core.progress import SILENT


def sample(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder from veilset synthesize --sample-later.")],
    *,
    unit: Annotated[str | None, typer.Option("--unit", metavar="I/N", help="Make this share alone.")] = None,
    units: Annotated[
        int | None,
        typer.Option("--units", min=1, help="How many shares there are.", show_default="one for 10,000 images"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where the release goes once all units are made.")
    ] = None,
    sign: Annotated[Path | None, typer.Option("--sign", help="Sign with this private key; see veilset keygen.")] = None,
    public: Annotated[
        str | None, typer.Option("--public", help="The same public images as in the run, where it used any.")
    ] = None,
    form: Annotated[str, typer.Option("--form", help="Of the shards: webdataset or parquet.")] = "webdataset",
    processes: Annotated[int, typer.Option("--processes", min=1, help="How many units to make at once.")] = 1,
    title: Title = None,
    licence: Licence = None,
    publisher: Publisher = None,
    description: Description = None,
    as_json: AsJson = False,
) -> None:
    """Draw the images of RUN: one unit with --unit, or all that are missing and then the release with --out.

    Units are independent and repeatable: any process or machine that has RUN can make any of them, at any time and as
    often as it likes, to the same bytes. Under torchrun the processes share them out.
    """
    console = Console(as_json=as_json)
    wanted = _form(form)
    if (unit is None) == (out is None):
        raise InputError("Expected --unit I/N to make one share, or --out DIR to make all and the release.")
    from veilset.core.files import require_absent
    from veilset.pipeline.scale.finishing import default_units, finish, make_units, units_of_rank
    from veilset.pipeline.scale.run_folder import open_run_folder
    from veilset.pipeline.scale.units import Unit, blocks_of, read_unit
    from veilset.release.about import About

    if sign is not None:
        from veilset.release.signing import load_private_key

        load_private_key(sign)
    about = About(**about_options(title, licence, publisher, description))
    opened = open_run_folder(run)
    progress = RichProgress() if os.environ.get("RANK", "0") == "0" else SILENT
    if unit is not None:
        if units is not None or sign is not None or about != About():
            raise InputError("--units, --sign and --title, ... belong to --out. --unit I/N says how many there are.")
        share = Unit.named(unit)
        blocks_of(share, opened.certificate.samples, opened.certificate.facts.classes)
        make_units(opened, [share], form=wanted, public=public, progress=progress)
        shard = read_unit(opened, share, wanted)
        assert shard is not None
        console.say(f"Unit {share}: {shard.name}, {shard.count} images, SHA-256 {shard.sha256}")
        console.result({"unit": str(share), "shard": shard.name, "images": shard.count, "sha256": shard.sha256})
        return
    assert out is not None
    require_absent(out)
    from veilset.privacy.processes import join_if_launched, wait_for_all

    rank, size = join_if_launched()
    total = units or default_units(opened)
    blocks_of(Unit(number=0, total=total), opened.certificate.samples, opened.certificate.facts.classes)
    own = units_of_rank(total, rank, size)
    make_units(opened, own, form=wanted, public=public, processes=processes, progress=progress)
    wait_for_all()
    if rank != 0:
        return
    certificate = finish(opened, out, units=total, form=wanted, sign_key=sign, about=about)
    for warning in certificate.warnings:
        console.warn(warning)
    console.say(f"Release: {out} ({certificate.samples:,} images in {total} shards). Check it: veilset verify {out}")
    console.result(
        {"release": str(out), "samples": certificate.samples, "shards": total, "guarantee": certificate.guarantee}
    )


def _form(text: str) -> Literal["webdataset", "parquet"]:
    if text == "webdataset" or text == "parquet":
        return "webdataset" if text == "webdataset" else "parquet"
    raise InputError(f"Expected --form webdataset or parquet, got {text!r}.")
