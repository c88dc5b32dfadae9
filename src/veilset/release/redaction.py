"""A release without a guarantee states no epsilon: not the computed one, not the one asked for.

A number beside the word is read as a promise, whatever the text around it says. The ledger of such a run keeps its
events; its header loses the budget, and the chain is made anew over what is left, naming the ledger it came from.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from veilset.privacy.ledger import Line, chained

_BUDGET_WORDS = re.compile(r"epsilon|delta|budget", re.IGNORECASE)
_NUMBER = re.compile(r"((?:\bepsilon|\beps|ε)(?:[\s=:~<>≤≥≈]|about|of|is)*)\d[\d.]*(?:e[+-]?\d+)?", re.IGNORECASE)


def redact(data: Any) -> Any:
    """A copy without keys that name a budget and without numbers beside the word epsilon."""
    if isinstance(data, Mapping):
        return {key: redact(value) for key, value in data.items() if not _BUDGET_WORDS.search(str(key))}
    if isinstance(data, str):
        return _NUMBER.sub(r"\1(not stated)", data)
    if isinstance(data, list | tuple):
        return [redact(item) for item in data]
    return data


def states_epsilon(data: Any) -> bool:
    """Whether `data` holds anything that `redact` would remove."""
    if isinstance(data, Mapping):
        return any(_BUDGET_WORDS.search(str(key)) or states_epsilon(value) for key, value in data.items())
    if isinstance(data, str):
        return _NUMBER.search(data) is not None
    if isinstance(data, list | tuple):
        return any(map(states_epsilon, data))
    return False
