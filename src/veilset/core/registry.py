"""Names to objects, imported only when asked for, so that `--help` never loads torch."""

import difflib
import importlib
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from veilset.core.errors import InputError

T = TypeVar("T")


def resolve(target: str) -> Any:
    """Import `package.module:attribute` and return the attribute."""
    module, separator, attribute = target.partition(":")
    if not (module and separator and attribute):
        raise InputError(f"Expected 'module:function', got {target!r}.")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(f"Cannot load {target!r}: {error}. Check the spelling and that it is installed.") from error


def unknown_name(kind: str, name: str, available: list[str]) -> InputError:
    """The error for a misspelt name: the nearest one, and all there are."""
    close = difflib.get_close_matches(name, available, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return InputError(f"Unknown {kind} {name!r}.{hint} Available: {', '.join(available)}.")


class Registry(Generic[T]):
    """A fixed table from names to lazily imported objects of one kind."""

    def __init__(self, kind: str, targets: dict[str, str]) -> None:
        self._kind = kind
        self._targets = targets

    def __iter__(self) -> Iterator[str]:
        return iter(self._targets)

    def __contains__(self, name: str) -> bool:
        return name in self._targets

    def get(self, name: str) -> T:
        """Return the object called `name`; an unknown name raises with a suggestion."""
        if name not in self._targets:
            raise unknown_name(self._kind, name, list(self._targets))
        loaded: T = resolve(self._targets[name])
        return loaded
