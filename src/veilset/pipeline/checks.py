"""What can be known before anything is paid: whether the result fits into memory and on the disk, and what to expect.

Everything here depends on public facts alone.
"""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from veilset.core.errors import InputError, VeilsetError
from veilset.core.files import require_absent, require_room
from veilset.core.records import Labels, Records
from veilset.privacy.account import Account
from veilset.privacy.budget import Budget
from veilset.privacy.vault import PublicFacts
from veilset.release.layout import MOST_BYTES

LEAST_PUBLIC = 10
_SHOWN = 10
_FEW_UNITS = 1000
_LARGE_EPSILON = 10
_WORKING_ROOM = 64 * 2**20  # for the ledger, paid results and weights


def check_before_paying(
    facts: PublicFacts,
    samples: int,
    *,
    workspace: Path,
    public: Records | None,
    scale: int = 1,
    out: Path | None = None,
    in_units: bool = False,
) -> None:
    """Refuse a run that could never end well, while that costs nothing.

    Public images are of the private ones' size, or `scale` times as large where a method cuts parts from them.
    With `in_units` the run makes no images: units do, each in little memory and in a shard of its own.
    """
    size = 0 if in_units else samples * (math.prod(facts.shape) + 4 * facts.classes + 8)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 2 * size > memory:
        raise InputError(
            f"{samples:,} images need about {2 * size / 2**30:,.0f} GB of memory, and this machine has "
            f"{memory / 2**30:,.0f}. Ask for fewer --samples, or pass --sample-later. Nothing was charged."
        )
    if size > MOST_BYTES:
        raise InputError(
            f"{samples:,} images take {size / 2**30:,.1f} GB, and nobody could verify a release of more than "
            f"{MOST_BYTES >> 30} in one file. Pass --sample-later, or ask for fewer --samples. Nothing was charged."
        )
    height, width, channels = facts.shape
    if public is not None and tuple(public.shape) not in (facts.shape, (scale * height, scale * width, channels)):
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


def warnings_of(facts: PublicFacts, budget: Budget, labels: Labels | None = None) -> list[str]:
    """What a person should know before the budget is spent; the certificate repeats it, and adds what labels lack."""
    warnings = []
    if budget.epsilon > _LARGE_EPSILON:
        warnings.append(f"Epsilon {budget.epsilon:g} is large: the guarantee for one {facts.unit} is weak.")
    few = few_units(facts.unit, facts.units)
    warnings += [] if few is None else [few]
    if labels is None:
        return warnings
    counts = labels.sum(axis=0) if facts.findings else np.bincount(labels, minlength=facts.classes)
    return [*warnings, *lacking_classes(facts, counts)]


def few_units(unit: str, units: int) -> str | None:
    """A warning where there are few units to learn from."""
    if units >= _FEW_UNITS:
        return None
    return f"Only {units} {unit}s: at this size the noise may drown what there is to learn."


def lacking_classes(facts: PublicFacts, counts: NDArray[np.int64]) -> list[str]:
    """Classes that nothing was released of. Labels are released anyway, so this says nothing new."""
    names = [name for name, count in zip(facts.class_names, counts, strict=False) if count == 0]
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    if facts.findings and names:
        said = f"{len(names)} of {facts.classes} findings are likely in no released image (soft labels tell more)"
        return [f"{said}: {shown}."]
    return [f"{len(names)} of {facts.classes} classes have no released image: {shown}."] if names else []


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
