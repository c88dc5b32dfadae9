"""`veilset compare`: methods x datasets x epsilons x seeds, resumable, with tables and plots."""

from pathlib import Path
from typing import Annotated

import typer

from veilset.cli.console import Console, RichProgress
from veilset.cli.options import AsJson


def compare(
    suite: Annotated[Path, typer.Argument(metavar="SUITE.toml", help="What to compare; see benchmarks/suites.")],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="A folder; a second call goes on with what it holds.")],
    data: Annotated[
        Path | None, typer.Option("--data", help="Where relative data paths start.", show_default="$VEILSET_DATA")
    ] = None,
    only_show: Annotated[
        bool, typer.Option("--only-show", help="Write tables and plots of what is finished; run nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run every method on every dataset and write JSON lines, a Markdown and an HTML table, and plots."""
    from veilset.core.errors import VeilsetError
    from veilset.core.files import write_whole
    from veilset.pipeline.compare.comparison import RESULTS
    from veilset.pipeline.compare.comparison import compare as run_suite
    from veilset.pipeline.compare.suite import data_folder, read_suite
    from veilset.pipeline.compare.suite_checks import check_data
    from veilset.report.comparison import html, markdown, plots_of, rows_of

    console = Console(as_json=as_json)
    wanted = read_suite(suite)
    folder = data_folder(suite, data).resolve()
    if not only_show:
        check_data(wanted, folder)
    done = run_suite(wanted, out, folder, run_missing=not only_show, progress=RichProgress())
    for title, reason in done.failures:
        console.warn(f"{title} failed: {reason}")
    if not done.lines:
        raise VeilsetError("No cell of the suite has ended well, so there is nothing to compare.")
    rows = rows_of(done.lines, {each.name: each.published or each.name for each in wanted.datasets})
    plots = plots_of(rows)
    for name, picture in plots.items():
        write_whole(out / name, picture.encode())
    write_whole(out / "table.md", markdown(wanted.name, rows, done.lines).encode())
    write_whole(out / "comparison.html", html(wanted.name, rows, done.lines, plots).encode())
    names = list(dict.fromkeys(name for row in rows for name in row.ours))
    console.table(
        wanted.name,
        ["method", *(f"{row.dataset} epsilon {row.epsilon:g}" for row in rows)],
        [[name, *(row.ours[name].shown if name in row.ours else "" for row in rows)] for name in names],
    )
    console.say(f"Results: {out / RESULTS}. Read {out / 'table.md'} or {out / 'comparison.html'}.")
    failures = [{"cell": title, "reason": reason} for title, reason in done.failures]
    console.result({"out": str(out), "cells": len(done.lines), "failures": failures})
    if failures:
        raise VeilsetError(f"{len(failures)} cell(s) failed; the others are kept. Call the same again to retry them.")
