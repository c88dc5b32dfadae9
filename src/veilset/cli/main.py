"""The `veilset` command and the order of its parts."""

import json
import sys
from typing import Annotated, Any

import typer

from veilset._version import __version__
from veilset.cli import (
    account,
    attack,
    audit,
    choose,
    compare,
    convert,
    demo,
    evaluate,
    export,
    federate,
    generator,
    inspect,
    keygen,
    methods,
    plan,
    publish,
    report,
    sample,
    sign,
    synthesize,
    train,
    verify,
)
from veilset.cli.console import guarded
from veilset.core.errors import INTERRUPTED_EXIT_CODE

# click's error of usage, or that of the copy of click which newer versions of typer carry instead.
_UsageError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

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


def _man(context: typer.Context, wanted: bool) -> None:
    from veilset.cli.manual import show_manual

    show_manual(context, wanted)


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
    man: Annotated[
        bool,
        typer.Option("--man", callback=_man, is_eager=True, help="Print the manual page; read it with | man -l -"),
    ] = False,
) -> None:
    """Publish a differentially private stand-in for an image dataset that you may not publish."""


for command in (
    demo.demo,
    methods.methods,
    inspect.inspect,
    choose.choose,
    plan.plan,
    synthesize.synthesize,
    sample.sample,
    convert.convert,
    verify.verify,
    train.train,
    evaluate.evaluate,
    attack.attack,
    audit.audit,
    report.report,
    compare.compare,
    export.export,
    sign.sign,
    publish.publish,
    account.account,
    keygen.keygen,
):
    app.command()(guarded(command))
app.add_typer(generator.app, name="generator")
app.add_typer(federate.federate)


def run() -> None:
    """The entry point. With `--json` an error of usage is JSON, too."""
    if "--json" not in sys.argv:
        app()
        return
    try:
        code = app(standalone_mode=False)
    except _UsageError as error:
        typer.echo(json.dumps({"error": error.format_message(), "exit_code": error.exit_code}))
        error.show()
        sys.exit(error.exit_code)
    except typer.Abort:
        sys.exit(INTERRUPTED_EXIT_CODE)
    sys.exit(code if isinstance(code, int) else 0)
