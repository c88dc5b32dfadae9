"""Every registered method in its worst case: its own `fit`, up to its last private call, rehearsed on toy records.

A method declares its forms in its own folder (`Method.forms`): settings that make its public work small, and how many
toy records it takes. A test fails until there is one. What the audit shows of a method depends on how far one record
can move it; the forms choose small clip norms where that helps, and the images here are strange.
"""

import numpy as np

from veilset.audit.game import Subject, Worlds
from veilset.core.errors import InputError
from veilset.core.randomness import numpy_generator
from veilset.core.records import Records
from veilset.core.registry import unknown_name
from veilset.data.images import ImageSet
from veilset.methods import METHODS
from veilset.methods.base import AuditForm, Context, Method
from veilset.privacy.budget import Budget
from veilset.privacy.session import Session

_DELTA = 1e-5
_SIDE = 16
_PUBLIC_IMAGES = 64


def method_subjects(name: str, epsilon: float) -> list[Subject]:
    """The audits of the method called `name`: one for each form of it."""
    if name not in METHODS:
        raise unknown_name("method", name, list(METHODS))
    kind = METHODS.get(name)
    if kind.guarantee == "none":
        raise InputError(f"{name} claims no guarantee, so there is nothing to contradict. See `veilset attack`.")
    if not kind.forms:
        raise InputError(f"{name} has no audit yet. Declare its forms beside its settings.")
    return [_subject(kind, epsilon, entry) for entry in kind.forms]


def _subject(kind: type[Method], epsilon: float, entry: AuditForm) -> Subject:
    worlds = strange_records(entry.records, entry.declared)
    method = kind.configure("fast", entry.settings)
    public = worlds.vault(present=True).check_public(public_images()) if method.needs_public else None
    plan = method.plan(worlds.facts, Budget(epsilon, _DELTA))

    def spend(session: Session) -> None:
        method.fit(plan, session, public, Context())

    return Subject(
        name=f"{kind.name}: {entry.form}",
        plan=plan,
        worlds=worlds,
        spend=spend,
        runs=entry.runs,
    )


def strange_records(count: int, declared: int) -> Worlds:
    """Images of random dots; only the last is of class 1, so that a model without it has never seen that class."""
    images = numpy_generator(0, "audit/records").integers(0, 256, (count, _SIDE, _SIDE, 1), dtype=np.uint8)
    labels = (np.arange(count) == count - 1).astype(np.int64)
    return Worlds(images=images, labels=labels, classes=2, declared=declared)


def public_images() -> Records:
    """Images of random dots for methods that need public ones."""
    coins = numpy_generator(0, "audit/public")
    images = coins.integers(0, 256, (_PUBLIC_IMAGES, _SIDE, _SIDE, 1), dtype=np.uint8)
    return ImageSet(images, np.arange(_PUBLIC_IMAGES) % 2)
