"""The `veilset` command and the order of its parts."""

from typing import Annotated

import typer

from veilset._version import __version__
from veilset.cli import (
    account,
    attack,
    audit,
    compare,
    demo,
    evaluate,
    export,
    federate,
    generator,
    inspect,
    keygen,
    methods,
    plan,
    report,
    synthesize,
    train,
    verify,
)
from veilset.cli.console import guarded

app = typer.Typer(
    name="veilset",
    help="Publish a differentially private stand-in for an image dataset that you may not publish.",
    epilog="Start with: veilset demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"veilset {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Publish a differentially private stand-in for an image dataset that you may not publish."""


for command in (
    demo.demo,
    methods.methods,
    inspect.inspect,
    plan.plan,
    synthesize.synthesize,
    verify.verify,
    train.train,
    evaluate.evaluate,
    attack.attack,
    audit.audit,
    report.report,
    compare.compare,
    export.export,
    account.account,
    keygen.keygen,
):
    app.command()(guarded(command))
app.add_typer(generator.app, name="generator")
app.add_typer(federate.federate)


def run() -> None:
    """The entry point."""
    app()
