"""`veilset --man`: the manual page, made from the help texts of all commands, in the language of man (roff)."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from veilset._version import __version__

_EXIT_CODES = {
    0: "All went well.",
    1: "Something failed that is not your input.",
    2: "A file, an option or a value cannot be used as given.",
    3: "The run would spend more than the plan, the budget or the account allows. No data was read.",
    4: "An audit contradicts a claim.",
    5: "A release, ledger or certificate does not match what it claims.",
    130: "Interrupted.",
}
_FILES = {
    "OUT.veilset-run": "An unfinished run: its ledger and what it paid for. Go on with --resume.",
    "$VEILSET_STATE": "Accounts of your data, where you name no other; see veilset account.",
}


def manual(context: typer.Context) -> str:
    """The page of a command and of all commands below it."""
    app: Any = context.command
    context = type(context)(app, info_name="veilset")  # however it was called
    parts = [
        f'.TH VEILSET 1 "" "veilset {__version__}" "User Commands"',
        ".SH NAME",
        f"veilset \\- {_text(_summary(app))}",
        ".SH SYNOPSIS",
        ".B veilset\n.I COMMAND\n[\\fIOPTIONS\\fR]",
        ".SH DESCRIPTION",
        _text(_help(app)),
        "Every command has \\fB\\-\\-json\\fR, which prints one JSON object, and \\fB\\-\\-help\\fR.",
        ".SH COMMANDS",
        *_commands(app, context),
        ".SH EXIT STATUS",
        *(f".TP\n.B {code}\n{_text(meaning)}" for code, meaning in _EXIT_CODES.items()),
        ".SH FILES",
        *(f".TP\n.I {_text(name)}\n{_text(meaning)}" for name, meaning in _FILES.items()),
    ]
    return "\n".join(parts) + "\n"


def show_manual(context: typer.Context, wanted: bool) -> None:
    """Print the page and end."""
    if wanted:
        typer.echo(manual(context), nl=False)
        context.exit()


def _commands(command: Any, context: Any) -> Iterator[str]:
    # By what they have and not by their types: newer versions of typer carry a copy of click's.
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        if found is None or found.hidden:
            continue
        inside = type(context)(found, info_name=name, parent=context)
        if hasattr(found, "list_commands"):
            yield from _commands(found, inside)
            continue
        usage = " ".join(found.collect_usage_pieces(inside))
        yield f".SS {_text(inside.command_path)} {_text(usage)}"
        yield _text(_help(found))
        for parameter in found.get_params(inside):
            record = parameter.get_help_record(inside)
            if record is not None and "--help" not in record[0]:
                said = record[1] if parameter.param_type_name == "option" else getattr(parameter, "help", "") or ""
                yield f".TP\n.B {_text(record[0])}\n{_text(said)}"


def _summary(command: Any) -> str:
    return _help(command).split("\n\n")[0].rstrip(".")


def _help(command: Any) -> str:
    return inspect.cleandoc(command.help or "")


def _text(words: str) -> str:
    """Words as roff shows them: no mark of its language, dashes that can be copied, no line that is a request."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", words)  # colours
    plain = plain.replace("\\[", "[")  # so that no bracket is taken for the terminal's markup
    paragraphs = [" ".join(part.split()) for part in plain.split("\n\n")]
    escaped = [part.replace("\\", "\\e").replace("-", "\\-") for part in paragraphs if part]
    return "\n.PP\n".join(f"\\&{part}" if part[:1] in ".'" else part for part in escaped)
