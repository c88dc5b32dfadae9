"""JSON that means one thing: no repeated keys, no NaN or infinity, sorted when written."""

import json
from pathlib import Path
from typing import Any

from veilset.core.errors import InputError, VerificationError

_MOST_LISTS, _MOST_ITEMS = 500_000, 2_000_000


def dump(data: Any) -> bytes:
    """Readable bytes, the same for the same data on every machine."""
    try:
        text = json.dumps(data, sort_keys=True, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"Expected plain JSON values (text, finite numbers, lists, mappings): {error}.") from error
    return text.encode() + b"\n"


def normalised(data: Any) -> Any:
    """What `data` becomes after a round trip: tuples are lists, keys are text."""
    return json.loads(dump(data))


def load(path: Path, size_limit: int) -> Any:
    """Read one file; anything that two readers could understand differently raises `VerificationError`."""
    try:
        with path.open("rb") as file:
            content = file.read(size_limit + 1)
        if len(content) > size_limit:
            raise VerificationError(f"{path.name} is larger than {size_limit} bytes. It was not read.")
        # An empty list takes two bytes here and thirty times as many in memory.
        if content.count(b"[") + content.count(b"{") > _MOST_LISTS or content.count(b",") > _MOST_ITEMS:
            raise VerificationError(f"{path.name} holds too many values, so it is too costly to check.")
        return json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_without_repeats,
            parse_float=_finite,
            parse_constant=_refused,
        )
    except OSError as error:
        raise VerificationError(f"Cannot read {path.name}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise VerificationError(f"{path.name} is not plain JSON: {error}.") from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("a key is repeated")
    return data


def _finite(text: str) -> float:
    value = float(text)
    if abs(value) == float("inf"):
        raise ValueError(f"{text} is not finite")
    return value


def _refused(text: str) -> None:
    raise ValueError(f"{text} is not a number")
