"""Options of every command that reads folders of images, DICOM or NIfTI files, described once."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: dict[str, tuple[Any, Any]] = {  # name -> type, default
    "table": (
        Annotated[
            Path | None,
            typer.Option("--table", help="A CSV with labels.", show_default="labels.csv of the folder"),
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
    "skip_bad": (
        Annotated[bool, typer.Option("--skip-bad", help="Leave out files that cannot be read, and say how many.")],
        False,
    ),
}


def reads_archives(command: F) -> F:
    """Give a command these options, and hand them over together as its argument `reading`."""

    @functools.wraps(command)
    def call(*first: Any, **arguments: Any) -> Any:
        from veilset.data.archives.reading import Reading, window_of

        arguments |= dict(zip(signature.parameters, first, strict=False))  # as the demo calls it
        chosen = {name: arguments.pop(name, default) for name, (_, default) in _OPTIONS.items()}
        window = window_of(chosen.pop("window"))
        return command(**arguments, reading=Reading(window=window, **chosen))

    signature = inspect.signature(command)
    own = [parameter for name, parameter in signature.parameters.items() if name != "reading"]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in _OPTIONS.items()
    ]
    call.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *added]}
    return call  # type: ignore[return-value]  # typer reads the signature above
