"""`veilset methods`: what there is, and every setting of one of them."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veilset.cli.console import Console
from veilset.cli.options import AsJson

if TYPE_CHECKING:
    from veilset.methods.base import Method


def methods(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show every setting of this method.")] = None,
    *,
    schema: Annotated[bool, typer.Option("--schema", help="With NAME: print the JSON Schema of its settings.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the methods, or with NAME every setting of one: its default, what it takes and what it means."""
    from veilset.core.errors import InputError
    from veilset.methods import METHODS

    console = Console(as_json=as_json)
    if name is None:
        if schema:
            raise InputError("--schema is of one method. Name it: veilset methods merf --schema")
        _list(console, [METHODS.get(known) for known in METHODS])
    elif schema:
        typer.echo(json.dumps(METHODS.get(name).settings_type.model_json_schema(), indent=2))
    else:
        _settings(console, METHODS.get(name))


def _list(console: Console, kinds: "list[type[Method]]") -> None:
    if not console.as_json:
        for kind in kinds:
            console.say(f"{kind.name}: {kind.title}")
            needs = "needs public images" if kind.needs_public else "can do without public images"
            console.say(f"  guarantee {kind.guarantee}; {needs}; presets {', '.join(kind.presets)}")
            console.say(f"  releases {', '.join(kind.releases).replace('_', ' ')}")
            console.say(f"  {kind.paper}")
            console.say(f"  {kind.claim_of_paper}\n")
        console.say("Every setting of a method: veilset methods NAME")
        console.say("What a run would spend: veilset plan --method NAME --records N --epsilon E")
    console.result({"methods": [_facts(kind) for kind in kinds]})


def _settings(console: Console, kind: "type[Method]") -> None:
    """A row for each setting, and what each preset sets otherwise."""
    from veilset.core.settings import allowed

    fields = kind.settings_type.model_fields
    if not console.as_json:
        console.say(f"{kind.name}: {kind.title}\n")
        for key, field in fields.items():
            default = str(field.default).lower() if isinstance(field.default, bool) else field.default
            console.say(f"{key} = {default if default != '' else '(none)'}    ({allowed(field)})")
            console.say(f"    {field.description}")
        for preset, changes in kind.presets.items():
            if changes:
                console.say(f"\nPreset {preset}: {', '.join(f'{key}={value}' for key, value in changes.items())}")
        console.say("\nSet one with: veilset synthesize ... --set KEY=VALUE")
    settings = [
        {"name": key, "default": field.default, "allowed": allowed(field), "meaning": field.description}
        for key, field in fields.items()
    ]
    console.result(
        {**_facts(kind), "settings": settings, "preset_settings": {k: dict(v) for k, v in kind.presets.items()}}
    )


def _facts(kind: "type[Method]") -> dict[str, Any]:
    return {
        "name": kind.name,
        "title": kind.title,
        "guarantee": kind.guarantee,
        "needs_public": kind.needs_public,
        "releases": list(kind.releases),
        "paper": kind.paper,
        "claim_of_paper": kind.claim_of_paper,
        "presets": list(kind.presets),
    }
