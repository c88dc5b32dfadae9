"""A release without a guarantee states no epsilon: not the computed one, not the one asked for.

A number beside the word is read as a promise, whatever the text around it says. The ledger of such a run keeps its
events; its header loses the budget, and the chain is made anew over what is left, naming the ledger it came from.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from veilset.privacy.ledger import CHAIN_START, Line, hash_of_line

_BUDGET_KEY = re.compile(r"epsilon|budget|^delta$|^eps(_|$)", re.IGNORECASE)
_DIGITS = r"\d[\d.]*(?:e[+-]?\d+)?"
# What may stand between the word and its number, as in "(epsilon, delta) = (1, 1e-5)" or "epsilon-DP with 1".
_BETWEEN = r"(?:[\s=:~<>≤≥≈(),\[\]-]|\b(?:about|of|is|was|with|to|at most|equals|delta|DP)\b|δ)*"
_NUMBER = re.compile(rf"((?:\bepsilon|\beps|ε){_BETWEEN}){_DIGITS}", re.IGNORECASE)
_PAIR = re.compile(rf"\(\s*{_DIGITS}\s*,\s*{_DIGITS}\s*\)(?=[\s-]*(?:DP\b|differential))", re.IGNORECASE)
_NOT_STATED = "(not stated)"


def redact(data: Any) -> Any:
    """A copy without keys that name a budget and without numbers beside the word epsilon."""
    if isinstance(data, Mapping):
        return {key: redact(value) for key, value in data.items() if not _BUDGET_KEY.search(str(key))}
    if isinstance(data, str):
        return _NUMBER.sub(rf"\1{_NOT_STATED}", _PAIR.sub(_NOT_STATED, data))
    if isinstance(data, list | tuple):
        return [redact(item) for item in data]
    return data


def states_epsilon(data: Any) -> bool:
    """Whether `data` holds anything that `redact` would remove."""
    if isinstance(data, Mapping):
        return any(_BUDGET_KEY.search(str(key)) or states_epsilon(value) for key, value in data.items())
    if isinstance(data, str):
        return _NUMBER.search(data) is not None or _PAIR.search(data) is not None
    return isinstance(data, list | tuple) and any(map(states_epsilon, data))


def redact_ledger(lines: Sequence[Mapping[str, Any]]) -> list[Line]:
    """The lines without their budget, chained anew; the header names the last hash of the ledger they came from."""
    redacted: list[Line] = []
    for line in lines:
        copy: Line = {**line, "body": redact(line["body"])}
        if not redacted:
            copy["body"]["redacted_from"] = lines[-1]["hash"]
        copy["previous"] = redacted[-1]["hash"] if redacted else CHAIN_START
        copy["hash"] = hash_of_line(copy)
        redacted.append(copy)
    return redacted
