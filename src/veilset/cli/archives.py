"""Options of commands that read images, described once: of archives (DICOM, findings, ...), and of the view of them."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from veilset.cli.options import Channels, Classes, GroupName, LabelName, Limit, Seed, Size, data_options

if TYPE_CHECKING:
    from veilset.data.archives.reading import Reading

F = TypeVar("F", bound=Callable[..., Any])
View = dict[str, Any]  # keyword arguments of `open_images`

_VIEW: dict[str, tuple[Any, Any]] = {  # name -> type, default
    "groups": (GroupName, None),
    "size": (Size, None),
    "channels": (Channels, None),
    "limit": (Limit, None),
    "labels": (LabelName, None),
    "classes": (Classes, None),
    "seed": (Seed, 0),
}

_ARCHIVES: dict[str, tuple[Any, Any]] = {
    "table": (
        Annotated[
            Path | None,
            typer.Option("--table", help="A CSV with labels.", show_default="labels.csv of the folder"),
        ],
        None,
    ),
    "groups_file": (
        Annotated[
            Path | None,
            typer.Option("--groups-file", help="A CSV path,group: to whom each image of a folder belongs."),
        ],
        None,
    ),
    "kind": (Annotated[str | None, typer.Option("--kind", help="Of a mixed folder: images, dicom or nifti.")], None),
    "frames": (
        Annotated[str | None, typer.Option("--frames", help="Of files with several frames: first, middle or all.")],
        None,
    ),
    "slices": (
        Annotated[str | None, typer.Option("--slices", help="Of NIfTI volumes: middle, all or how many.")],
        None,
    ),
    "window": (
        Annotated[
            str | None,
            typer.Option("--window", metavar="CENTRE,WIDTH", help="One grey scale for all scans, e.g. 40,400."),
        ],
        None,
    ),
    "burned_in": (
        Annotated[str, typer.Option("--burned-in", help="Text in the pixels: refuse, mask or keep.")],
        "refuse",
    ),
    "check_text": (
        Annotated[bool, typer.Option("--check-text", help="Look for text in every image (extra medical; slow).")],
        False,
    ),
    "findings": (
        Annotated[
            str | None,
            typer.Option(
                "--findings", metavar="A,B,C", help="Columns of 0 and 1, of which several may be true of an image."
            ),
        ],
        None,
    ),
    "uncertain": (
        Annotated[str | None, typer.Option("--uncertain", help="Findings that are -1 or empty: zeros, ones or drop.")],
        None,
    ),
    "findings_as": (
        Annotated[
            str,
            typer.Option("--findings-as", help="findings, or classes: each combination (A+B, none) is a class."),
        ],
        "findings",
    ),
    "skip_bad": (
        Annotated[bool, typer.Option("--skip-bad", help="Leave out files that cannot be read, and say how many.")],
        False,
    ),
}


def reads_archives(command: F) -> F:
    """Give a command the options of archives, and hand them over together as its argument `reading`.

    A command with an argument `view` gets all options of both kinds, and that argument is for `open_images`. An option
    whose name the command uses for something of its own is left out.
    """

    @functools.wraps(command)
    def call(*first: Any, **arguments: Any) -> Any:
        from veilset.data.archives.reading import Reading, names_of, window_of

        arguments |= dict(zip(signature.parameters, first, strict=False))  # as the demo calls it
        chosen = {name: arguments.pop(name, default) for name, (_, default) in offered.items()}
        view = {name: chosen.pop(name) for name in _VIEW if name in chosen}
        window, findings = window_of(chosen.pop("window")), names_of(chosen.pop("findings"))
        reading = Reading(window=window, findings=findings, **chosen)
        if not has_view:
            return command(**arguments, reading=reading)
        groups = view.pop("groups")
        return command(**arguments, view=data_options(**view, reading=reading) | {"groups": groups})

    signature = inspect.signature(command)
    has_view = "view" in signature.parameters
    options = _VIEW | _ARCHIVES if has_view else _ARCHIVES
    offered = {name: option for name, option in options.items() if name not in signature.parameters}
    own = [parameter for name, parameter in signature.parameters.items() if name not in ("reading", "view")]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in offered.items()
    ]
    call.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *added]}
    return call  # type: ignore[return-value]  # typer reads the signature above


def arguments_of(reading: "Reading") -> list[str]:
    """These options as another process of ours is given them: those that differ from what they are unless told."""
    found = []
    for field in fields(reading):
        value = getattr(reading, field.name)
        if value is None or value == field.default:
            continue
        option = f"--{field.name.replace('_', '-')}"
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        found.append(option if value is True else f"{option}={shown}")
    return found
