"""The one tree of errors. Each says what was expected, what came, and what to do; each knows its exit code.

A message names options as the command line spells them, `--size 32`. Whoever called from Python reads `size=32`.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ClassVar

_speaks_flags: ContextVar[bool] = ContextVar("speaks_flags", default=False)

# A flag, and its value where that can be told from the sentence around it: a number, a PLACE, a builtin:name.
_FLAG = re.compile(
    r"(?<![\w-])--([a-z][a-z-]*[a-z])"
    r"(?: (?:(\d+(?:\.\d+)?(?:e-?\d+)?)(?![\w.]*\w)|([A-Z][A-Z]+)\b|(builtin:[\w:]*\w)))?"
)
_SWITCHES = {"resume", "skip-bad", "as-published", "references", "controls", "check-text", "force"}
_OTHER_NAMES = {"license": "licence", "set": "settings", "json": "as_json"}


@contextmanager
def flags_spoken() -> Iterator[None]:
    """Let errors name options as the command line spells them, until the block ends."""
    token = _speaks_flags.set(True)
    try:
        yield
    finally:
        _speaks_flags.reset(token)


def in_python_terms(text: str) -> str:
    """The same sentence for somebody who calls functions: `--size 32` is `size=32`, `--resume` is `resume=True`."""

    def argument(found: re.Match[str]) -> str:
        flag, number, place, builtin = found.groups()
        name = _OTHER_NAMES.get(flag, flag.replace("-", "_"))
        if builtin is not None:
            return f'{name}="{builtin}"'
        value = number or place or ("True" if flag in _SWITCHES else None)
        return name if value is None else f"{name}={value}"

    return _FLAG.sub(argument, text)


class VeilsetError(Exception):
    """Something failed that is not the user's input."""

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        text = super().__str__()
        return text if _speaks_flags.get() else in_python_terms(text)


class InputError(VeilsetError):
    """A file, an option or a value that cannot be used as given."""

    exit_code = 2


class BudgetError(VeilsetError):
    """The call would spend more than the plan, the budget or the account allows. No data was read."""

    exit_code = 3


class AuditContradictionError(VeilsetError):
    """An audit found a lower bound above the claimed epsilon."""

    exit_code = 4


class VerificationError(VeilsetError):
    """A release, ledger or certificate does not match what it claims."""

    exit_code = 5


INTERRUPTED_EXIT_CODE = 130
