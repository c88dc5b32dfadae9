"""What can be known before anything is paid: whether the result fits into memory and on the disk, and what to expect.

Everything here depends on public facts alone.
"""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from veilset.core.errors import InputError, VeilsetError
from veilset.core.files import require_absent, require_room
from veilset.core.records import Records
from veilset.privacy.account import Account
from veilset.privacy.budget import Budget
from veilset.privacy.vault import PublicFacts
from veilset.release.layout import MOST_BYTES

LEAST_PUBLIC = 10
_FEW_UNITS = 1000
_LARGE_EPSILON = 10
_WORKING_ROOM = 64 * 2**20  # for the ledger, paid results and weights


def check_before_paying(
    facts: PublicFacts, samples: int, *, workspace: Path, public: Records | None, out: Path | None = None
) -> None:
    """Refuse a run that could never end well, while that costs nothing."""
    size = samples * (math.prod(facts.shape) + 4 * facts.classes + 8)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 2 * size > memory:
        raise InputError(
            f"{samples:,} images need about {2 * size / 2**30:,.0f} GB of memory, and this machine has "
            f"{memory / 2**30:,.0f}. Ask for fewer --samples. Nothing was charged."
        )
    if size > MOST_BYTES:
        raise InputError(
            f"{samples:,} images take {size / 2**30:,.1f} GB, and nobody could verify a release of more than "
            f"{MOST_BYTES >> 30}. Ask for fewer --samples. Nothing was charged."
        )
    if public is not None and tuple(public.shape) != tuple(facts.shape):
        wanted, found = ("x".join(map(str, shape)) for shape in (facts.shape, public.shape))
        raise InputError(
            f"Expected public images of {wanted} pixels like the private ones, got {found}. Pass --size to bring both "
            "to one size. Nothing was charged."
        )
    if public is not None and len(public.labels) < LEAST_PUBLIC:
        raise InputError(
            f"Expected at least {LEAST_PUBLIC} public images, got {len(public.labels)}: too few to learn from. "
            "Pass another --public, for example builtin:photos. Nothing was charged."
        )
    require_room(workspace, _WORKING_ROOM)
    if out is not None:
        require_absent(out)
        require_room(out, size + _WORKING_ROOM)


def early_warnings(facts: PublicFacts, budget: Budget) -> list[str]:
    """What a person should know before the budget is spent; the certificate repeats it."""
    warnings = []
    if budget.epsilon > _LARGE_EPSILON:
        warnings.append(f"Epsilon {budget.epsilon:g} is large: the guarantee for one {facts.unit} is weak.")
    few = few_units(facts.unit, facts.units)
    return warnings if few is None else [*warnings, few]


def few_units(unit: str, units: int) -> str | None:
    """A warning where there are few units to learn from."""
    if units >= _FEW_UNITS:
        return None
    return f"Only {units} {unit}s: at this size the noise may drown what there is to learn."


@contextmanager
def charged(account: Account | None, epsilon: float, workspace: Path) -> Iterator[None]:
    """Add to an error that the budget is spent, and how to go on; without an account, this process did not pay."""
    note = ""
    if account is not None:
        note = (
            f" Epsilon {epsilon:g} is charged to {account.path}. What it paid for is kept in {workspace}: remove the "
            "cause, then give the same command with --resume (in Python, with this workspace and resume=True), which "
            "costs nothing more."
        )
    try:
        yield
    except VeilsetError as error:
        raise type(error)(f"{error}{note}") from error
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        raise VeilsetError(f"{name}{error.strerror or error}.{note}") from error
    except MemoryError as error:
        raise VeilsetError(f"Out of memory.{note}") from error
