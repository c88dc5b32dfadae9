"""Every registered method in its worst case: its own `fit`, up to its last private call, rehearsed on toy records.

A new method needs one entry in `AUDITS`: settings that make its public work small, and how many toy records it takes. A
test fails until it is there. What the audit shows of a method depends on how far one record can move it; the entries
choose small clip norms and strange images where that helps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from veilset.audit.game import Subject, Worlds
from veilset.core.errors import InputError
from veilset.core.randomness import numpy_generator
from veilset.core.records import Records
from veilset.core.registry import unknown_name
from veilset.data.images import ImageSet
from veilset.methods import METHODS
from veilset.methods.base import Context
from veilset.privacy.budget import Budget
from veilset.privacy.session import Session

_DELTA = 1e-5
_SIDE = 16
_PUBLIC_IMAGES = 64


@dataclass(frozen=True, kw_only=True)
class MethodAudit:
    """How one form of a method is audited: in small, with `records` toy records, the last of them in question."""

    form: str = "default"
    settings: Mapping[str, str] = field(default_factory=dict)
    records: int = 2
    declared: int = 1000
    runs: int = 1000


_DATA_FREE = {
    "warmup_steps": "1", "steps": "1", "settle_steps": "1", "random_features": "64", "pictures": "40", "batch": "16",
    "student_batch": "16", "bank": "32",
}  # fmt: skip

_CRITICS = {"critics": "2", "steps": "4", "warmup": "2", "critic_updates": "2", "pictures": "40", "code_size": "8"}

_LATENT = {"generator_steps": "1", "inversion_steps": "1", "dimensions": "4"}

_AGGREGATED = {
    "layout": "C1-C1-x", "steps": "5", "mu": "2", "width": "2", "generated_batch": "8", "conv1_steps": "2",
    "teacher_share": "0",
}  # fmt: skip

_DISTILLED = {
    "width": "4", "images_per_class": "2", "student_updates": "1", "networks": "3", "moves": "1", "clip_norm": "0.01",
}  # fmt: skip

AUDITS: dict[str, tuple[MethodAudit, ...]] = {
    "dfd": (
        MethodAudit(form="A, DP-SGD teacher", settings={**_DATA_FREE, "teacher_steps": "5"}),
        MethodAudit(
            form="B, gradients of teachers",
            settings={**_DATA_FREE, "variant": "B", "teachers": "2", "rounds": "2"},
            records=4,
        ),
    ),
    "dpaf": (
        MethodAudit(form="aggregate and conv2*", settings=_AGGREGATED),
        MethodAudit(form="with a private conv1", settings={**_AGGREGATED, "conv1": "frozen"}, runs=300),
    ),
    "dpgan": (
        MethodAudit(
            form="linear critic and classifier",
            settings={"steps": "4", "random_features": "64", "pictures": "40", "generated_batch": "8"},
        ),
        MethodAudit(
            form="convolutional critic",
            settings={
                "critic": "dcgan",
                "steps": "4",
                "batch": "100",
                "teacher_share": "0",
                "generated_batch": "8",
            },
            runs=300,
        ),
    ),
    "imgsyn": (MethodAudit(form="teacher and statistics", runs=300),),
    "latent": (
        MethodAudit(form="moments of latents", settings=_LATENT, runs=300),
        MethodAudit(form="with a private clip norm", settings={**_LATENT, "clip": "private"}, runs=300),
        MethodAudit(form="mixtures in two rounds", settings={**_LATENT, "components": "2", "rounds": "2"}, runs=300),
    ),
    "merf": (
        MethodAudit(
            form="class sums and moments",
            settings={"steps": "1", "random_features": "64", "code_size": "16", "pictures": "100", "batch": "16"},
        ),
    ),
    "pldk": (
        MethodAudit(
            form="expert and teacher",
            settings={
                **_DISTILLED,
                "matching": "trajectory",
                "expert_steps": "4",
                "expert_every": "1",
                "iterations": "1",
                "student_steps": "1",
            },
            runs=300,
        ),
        MethodAudit(form="class means of networks", settings={**_DISTILLED, "matching": "distribution"}, runs=300),
        MethodAudit(form="class gradients of networks", settings={**_DISTILLED, "matching": "gradient"}, runs=300),
    ),
    "sanitized_gan": (
        MethodAudit(form="all critics together", settings=_CRITICS, records=4),
        MethodAudit(form="critics in turn", settings={**_CRITICS, "scheme": "in_turn"}, records=4),
    ),
    "pate": (MethodAudit(form="votes", settings={**_DATA_FREE, "teachers": "2"}, records=4),),
}


def method_subjects(name: str, epsilon: float) -> list[Subject]:
    """The audits of the method called `name`: one for each form of it."""
    if name not in METHODS:
        raise unknown_name("method", name, list(METHODS))
    kind = METHODS.get(name)
    if kind.guarantee == "none":
        raise InputError(f"{name} claims no guarantee, so there is nothing to contradict. See `veilset attack`.")
    if not AUDITS.get(name):
        raise InputError(f"{name} has no audit yet. Add it to AUDITS in veilset/audit/methods.py.")
    return [_subject(name, epsilon, entry) for entry in AUDITS[name]]


def _subject(name: str, epsilon: float, entry: MethodAudit) -> Subject:
    worlds = strange_records(entry.records, entry.declared)
    method = METHODS.get(name).configure("fast", entry.settings)
    public = worlds.vault(present=True).check_public(public_images()) if method.needs_public else None

    def spend(session: Session) -> None:
        method.fit(session, public, Context())

    return Subject(
        name=f"{name}: {entry.form}",
        plan=method.plan(worlds.facts, Budget(epsilon, _DELTA)),
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
