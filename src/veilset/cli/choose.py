"""`veilset choose`: which method and which epsilon, from a few answers and no data."""

import sys
from typing import Annotated, Any

import typer

from veilset.cli.console import Console
from veilset.cli.options import AsJson
from veilset.cli.plan import facts_of
from veilset.cli.pulse import PULSE
from veilset.core.errors import InputError


def choose(
    *,
    records: Annotated[
        int | None, typer.Option("--records", "-n", min=1, help="How many records (or groups) there are.")
    ] = None,
    shape: Annotated[str | None, typer.Option("--shape", help="Height x width x channels of the images.")] = None,
    classes: Annotated[int | None, typer.Option("--classes", min=1, help="How many classes there are.")] = None,
    unit: Annotated[str | None, typer.Option("--unit", help="record, or group where people have several.")] = None,
    findings: Annotated[bool, typer.Option("--findings", help="An image can have several findings.")] = False,
    public: Annotated[str | None, typer.Option("--public", help="Public images: none, other or alike.")] = None,
    look_alike: Annotated[
        bool | None, typer.Option("--look-alike/--need-not-look-alike", help="Whether to look like the private images.")
    ] = None,
    audience: Annotated[str | None, typer.Option("--audience", help="Who gets it: world, partners, inside.")] = None,
    minutes: Annotated[float | None, typer.Option("--minutes", help="How long a run may take.")] = None,
    samples: Annotated[int | None, typer.Option("--samples", min=1, help="How many images to release.")] = None,
    epsilon: Annotated[float | None, typer.Option("--epsilon", "-e", help="Where it is decided already.")] = None,
    as_json: AsJson = False,
) -> None:
    """Recommend a method and an epsilon, and say why. Asks what you leave out; reads no data."""
    from veilset.pipeline.choosing import AUDIENCE, PUBLIC, Answers, meanings, recommend

    console = Console(as_json=as_json)
    asks = _is_terminal() and not as_json
    with PULSE.paused():
        records = _ask(asks, "How many records are there (patients, where they have several images)?", records, 1000)
        shape = _ask(asks, "Height x width x channels of the images, as they will be released?", shape, "64x64x1")
        classes = _ask(asks, "How many classes?", classes, 2)
        unit = _ask(asks, "Has a person one image (record) or several (group)?", unit, "record")
        public = _ask(asks, f"Public images: {_menu(PUBLIC)}?", public, "none")
        if look_alike is None:
            look_alike = asks and typer.confirm("Should released images look like the private ones?")
        audience = _ask(asks and epsilon is None, f"Who gets the release: {_menu(AUDIENCE)}?", audience, "world")
    answers = Answers(
        facts=facts_of(records, shape, classes, unit, findings=findings),
        public=public,  # type: ignore[arg-type]  # checked there
        look_alike=bool(look_alike),
        audience=audience,  # type: ignore[arg-type]
        minutes=minutes,
        samples=samples,
        epsilon=epsilon,
    )
    found = recommend(answers)
    for reason in found.reasons:
        console.say(reason)
    if found.cost is not None:
        console.say(found.cost.sentence())
    console.say("Other choices of epsilon:")
    for line in meanings(found.delta):
        console.say(f"  {line}")
    for warning in found.warnings:
        console.warn(warning)
    console.say(f"Look at your data first, which costs nothing: veilset inspect IMAGES\nThen: {found.command(answers)}")
    console.result(
        {
            "method": found.method,
            "preset": found.preset,
            "epsilon": found.epsilon,
            "delta": found.delta,
            "samples": found.samples,
            "seconds": None if found.cost is None else round(found.cost.seconds),
            "memory_mb": None if found.cost is None else round(found.cost.memory_mb),
            "reasons": list(found.reasons),
            "warnings": list(found.warnings),
            "command": found.command(answers),
        }
    )


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _menu(known: dict[str, str]) -> str:
    return ", ".join(f"{name} ({text})" for name, text in known.items())


def _ask(asks: bool, question: str, given: Any, default: Any) -> Any:
    """What was given, else what a person on a terminal says; without one the default, and for a count an error."""
    if given is not None:
        return given
    if asks:
        return typer.prompt(question, default=default, type=type(default))
    if question.startswith("How many records"):
        raise InputError("Expected --records: how many records there are, or patients. Nobody is there to be asked.")
    return default
