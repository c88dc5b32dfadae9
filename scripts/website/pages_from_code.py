"""Pages of the site that follow from the code: commands, settings, Python names, file formats and exit codes.

A page of docs/reference says where one of these goes, with a line `<!-- made: NAME -->`.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click
import typer.main

import veilset
from veilset.cli.main import app
from veilset.core import errors
from veilset.core.settings import Settings, allowed
from veilset.methods import METHODS
from veilset.methods.base import Method
from veilset.release.layout import LISTABLE
from veilset.release.schema import certificate_schema
from veilset.training.settings import TrainingConfig

FILES = {
    "data.npz": "Images and labels: arrays `images`, `labels`, and where there are any `soft_labels`.",
    "train.parquet": "The same images as a table, for Hugging Face `datasets`; left out above 128 MB of pixels.",
    "card.md": "The card: what the release is and what it promises, in the Hugging Face format.",
    "certificate.json": "What is guaranteed, for whom, and from which events.",
    "certificate.sig": "The signature of certificate.json, where the release is signed.",
    "croissant.json": "A description in Croissant 1.1, for search engines and tools.",
    "label.md": "One page on what protects whom, along NIST SP 800-226.",
    "manifest.json": "In the place of data.npz: the shards of a release that is too large for one file.",
    ".huggingface.yaml": "Beside a manifest: tells `datasets` that the shards are the data.",
    "generator.json, generator.safetensors": "A generator to draw more images from: how to build it, and its weights.",
    "student.json, student.safetensors": "A classifier that was trained on the released images.",
    "teacher.json, teacher.safetensors": "A private classifier that the method trained.",
}


def cell(text: object) -> str:
    """Text that stands in a cell of a table."""
    return str(text).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def table(heads: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> str:
    """A table in Markdown."""
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(cell(part) for part in line) + " |" for line in lines)


def _walk(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for part, inner in command.commands.items():
            yield from _walk(inner, f"{name} {part}")
    else:
        yield name, command


def _takes(parameter: click.Parameter) -> str:
    if getattr(parameter, "is_flag", False):
        return "on or off"
    if parameter.metavar:
        return parameter.metavar
    kind = parameter.type
    if isinstance(kind, click.Choice):
        return ", ".join(map(str, kind.choices))
    if isinstance(kind, click.IntRange | click.FloatRange):
        number = "whole number" if isinstance(kind, click.IntRange) else "number"
        limits = [f"from {kind.min}"] if kind.min is not None else []
        return " ".join([number, *limits, *([f"to {kind.max}"] if kind.max is not None else [])])
    if isinstance(kind, click.Path):
        return "path"
    names = {"float": "number", "integer": "whole number", "boolean": "on or off"}
    return names.get(kind.name, kind.name)


def _option(option: click.Option) -> tuple[object, ...]:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    unset = option.default is None or option.default is False or callable(option.default) or option.default == ()
    default = "required" if option.required else "" if unset else f"`{option.default}`"
    return names, _takes(option), default, option.help or ""


def commands() -> str:
    """Every command with its arguments and options, from the help texts."""
    parts = []
    for name, command in _walk(typer.main.get_command(app), "veilset"):
        usage = command.get_usage(click.Context(command, info_name=name)).removeprefix("Usage: ")
        options = [_option(found) for found in command.params if isinstance(found, click.Option) and not found.hidden]
        parts += [f"## {name}", command.help or "", f"```text\n{usage}\n```"]
        parts.append(table(("option", "takes", "default", "meaning"), options))
    return "\n\n".join(parts)


def _shown(value: object) -> str:
    if value is None or value == "":
        return "(none)"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _fields(kind: type[Settings]) -> str:
    rows: list[tuple[object, ...]] = [
        (f"`{name}`", _shown(field.default), allowed(field), field.description)
        for name, field in kind.model_fields.items()
    ]
    return table(("setting", "default", "takes", "meaning"), rows)


def _method(kind: type[Method]) -> list[str]:
    public = "It needs public images." if kind.needs_public else "It can do without public images."
    releases = ", ".join(kind.releases).replace("_", " ")
    parts = [
        f"## {kind.name}",
        f"{kind.title[:1].upper()}{kind.title[1:]}. {public} It releases {releases}. "
        f"[Its page](../methods/{kind.name}.md) has the privacy argument.",
        _fields(kind.settings_type),
    ]
    changed = [(f"`{name}`", ", ".join(f"{k}={v}" for k, v in by.items())) for name, by in kind.presets.items() if by]
    return [*parts, *([table(("preset", "what it sets"), changed)] if changed else [])]


def settings() -> str:
    """Every setting of every method, and those of a student's training, from their declarations."""
    parts = [part for name in METHODS for part in _method(METHODS.get(name))]
    return "\n\n".join([*parts, "## Training of students", _fields(TrainingConfig)])


def api() -> str:
    """The public names of `veilset`, for mkdocstrings."""
    targets = {name: target.replace(":", ".") for name, target in veilset._EXPORTS.items()}
    options = "    options:\n      heading: veilset.{name}\n      toc_label: {name}\n"
    names = sorted(targets, key=str.lower)
    return "\n".join(f"::: {targets[name]}\n{options.format(name=name)}" for name in names)


def _schema(name: str, schema: dict[str, Any]) -> str:
    body = json.dumps(schema, indent=2).replace("\n", "\n    ")
    return f'??? note "{name}"\n\n    ```json\n    {body}\n    ```'


def formats() -> str:
    """The files of a release, and the JSON Schemas."""
    missing = {*LISTABLE} - {part for names in FILES for part in names.split(", ")}
    if missing:
        raise SystemExit(
            f"scripts/website/pages_from_code.py does not describe {', '.join(sorted(missing))} of a release."
        )
    files: list[tuple[object, ...]] = [(f"`{name.replace(', ', '`, `')}`", said) for name, said in FILES.items()]
    parts = ["## Files of a release", table(("file", "what it holds"), files), "## JSON Schemas"]
    parts.append(_schema("certificate.json (veilset verify --schema)", certificate_schema()))
    of_methods = {name: METHODS.get(name).settings_type.model_json_schema() for name in METHODS}
    parts += [_schema(f"settings of {name} (veilset methods {name} --schema)", of_methods[name]) for name in METHODS]
    return "\n\n".join(parts)


def _errors(kind: type[errors.VeilsetError]) -> Iterator[type[errors.VeilsetError]]:
    yield kind
    for inner in kind.__subclasses__():
        if inner.__module__ == errors.__name__:
            yield from _errors(inner)


def exit_codes() -> str:
    """The exit codes, from the tree of errors."""
    rows: list[tuple[object, ...]] = [(0, "Done.", "")]
    rows += [
        (kind.exit_code, (kind.__doc__ or "").split("\n")[0], f"`{kind.__name__}`")
        for kind in _errors(errors.VeilsetError)
    ]
    rows.append((errors.INTERRUPTED_EXIT_CODE, "You interrupted it (Ctrl-C).", ""))
    return table(("code", "meaning", "error in Python"), rows)


MADE: dict[str, Callable[[], str]] = {
    "commands": commands,
    "settings": settings,
    "api": api,
    "formats": formats,
    "exit-codes": exit_codes,
}
