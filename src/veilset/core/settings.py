"""Public settings, declared once: type, default, range and meaning.

A subclass of `Settings` is a list of fields. From these declarations come the checks in Python and on the command line,
the list of `veilset methods NAME`, and the JSON Schema. `auto` is the one word for "a rule decides".
"""

import math
import operator
import sys
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from veilset.core.errors import InputError
from veilset.core.registry import unknown_name

Auto = Literal["auto"]

# What is smaller or larger than this is a slip, and rounding would eat it.
_SMALLEST, _LARGEST = 1e-9, 1e9
RATE = {"least": 1e-12, "most": 1e6}
"""The range of learning rates: outside, weights would not move or not be finite."""
CLIP_NORM = {"least": 1e-9, "most": 1e9}
"""The range of clip norms, inside which rounding is bounded (privacy/rows.py)."""


def require_clip_norm(clip_norm: float, of: str) -> None:
    """Refuse a clip norm whose squares could vanish or overflow."""
    if not CLIP_NORM["least"] <= clip_norm <= CLIP_NORM["most"]:
        raise InputError(
            f"Expected clip_norm > 0, from {CLIP_NORM['least']:g} to {CLIP_NORM['most']:g}, got {clip_norm} for {of}."
        )


def setting(
    default: Any,
    meaning: str,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    multiple_of: float | None = None,
) -> Any:
    """A field of `Settings`: its default, what it means, and the range of its numbers."""
    limits = {
        "minimum": least,
        "exclusiveMinimum": above,
        "maximum": most,
        "exclusiveMaximum": below,
        "multipleOf": multiple_of,
    }
    return Field(
        default,
        description=meaning,
        json_schema_extra={name: limit for name, limit in limits.items() if limit is not None},
    )


class Settings(BaseModel):
    """Frozen, keyword-only, checked; an unknown name or a value that is not allowed raises `InputError`.

    A text is read as the field's type, so that `--set steps=20` and `settings={"steps": 20}` mean the same.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    if not TYPE_CHECKING:

        def __init__(self, **values: Any) -> None:
            fields = type(self).model_fields
            for name in values:
                if name not in fields:
                    raise unknown_name("setting", name, list(fields))
            read = {name: _read(value, fields[name].annotation) for name, value in values.items()}
            try:
                super().__init__(**read)
            except ValidationError as error:
                raise InputError(_sentence(error.errors()[0], fields)) from None
            self.check()

    def check(self) -> None:
        """Refuse numbers out of range; subclasses add what does not go together."""
        for name, value in self:
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            limits = _limits(type(self).model_fields[name])
            if not all(_WITHIN[kind](value, limit) for kind, limit in limits.items()):
                raise InputError(
                    f"Expected {name} to be {allowed(type(self).model_fields[name])}, got {_number(value)}."
                )
            if value and not (limits.get("minimum") or _SMALLEST) <= abs(value) <= _LARGEST:
                raise InputError(
                    f"Expected {name} to be 0 or of a size from {_SMALLEST:g} to {_LARGEST:g}, got {_number(value)}."
                )

    def changed(self, **values: Any) -> Self:
        """The same settings but for these."""
        return type(self)(**{**dict(self), **values})

    def plain(self) -> dict[str, Any]:
        """The settings as JSON-ready data."""
        return self.model_dump()


_WITHIN: dict[str, Callable[[float, float], bool]] = {
    "minimum": operator.ge,
    "exclusiveMinimum": operator.gt,
    "maximum": operator.le,
    "exclusiveMaximum": operator.lt,
    "multipleOf": lambda value, step: value % step == 0,
}
_WORDS = {
    "minimum": "of at least",
    "exclusiveMinimum": "above",
    "maximum": "of at most",
    "exclusiveMaximum": "below",
    "multipleOf": "that is a multiple of",
}


def allowed(field: FieldInfo) -> str:
    """What a field takes, in words: "auto or a whole number of at least 2"."""
    said = [f"{_WORDS[kind]} {limit:g}" for kind, limit in _limits(field).items()]
    return " or ".join(_kinds(field.annotation, " and ".join(said)))


def _number(value: float) -> str:
    """A number in few letters, however large."""
    return f"{value:g}" if abs(value) < sys.float_info.max else f"a number of {len(str(value))} digits"


def _limits(field: FieldInfo) -> dict[str, float]:
    return typing.cast(dict[str, float], field.json_schema_extra or {})


def _kinds(annotation: Any, within: str) -> list[str]:
    if typing.get_origin(annotation) is Literal:
        names = [str(name) for name in typing.get_args(annotation)]
        return [names[0] if len(names) == 1 else f"one of {', '.join(names)}"]
    parts = sorted(typing.get_args(annotation), key=lambda part: part in (int, float, str))  # words first
    if parts:
        return [kind for part in parts for kind in _kinds(part, within)]
    named = {bool: "true or false", str: "text", type(None): "none"}
    if annotation in named:
        return [named[annotation]]
    return [f"a {'whole number' if annotation is int else 'number'} {within}".strip()]


def _read(value: Any, annotation: Any) -> Any:
    """A text as the number or truth that the field asks for; anything else as it is."""
    if not isinstance(value, str):
        return value
    options = typing.get_args(annotation)
    if typing.get_origin(annotation) is Literal or annotation is str:
        return value
    for kind in options or (annotation,):
        if typing.get_origin(kind) is Literal and value in typing.get_args(kind):
            return value
    for kind in options or (annotation,):
        if kind is bool and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
    return value


def _sentence(error: ErrorDetails, fields: dict[str, FieldInfo]) -> str:
    name = str(error["loc"][0]) if error["loc"] else "settings"
    got = error.get("input")
    shown = "infinity" if isinstance(got, float) and math.isinf(got) else repr(got)
    return f"Expected {name} to be {allowed(fields[name])}, got {shown}." if name in fields else str(error["msg"])
