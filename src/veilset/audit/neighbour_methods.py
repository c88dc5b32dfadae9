"""Every registered method and every mechanism in a neighbour run: their own code, whole, on toy records.

A method is here by being registered and having its forms in `AUDITS` (methods.py). What leaves is what a release is
made of: samples, networks, warnings, the ledger, and what the workspace keeps.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from veilset.audit.game import Subject
from veilset.audit.mechanisms import mechanism_subject
from veilset.audit.methods import AUDITS, MethodAudit, public_images
from veilset.audit.neighbours import Neighbours, NeighbourSubject, session_play
from veilset.core.randomness import numpy_generator
from veilset.data.images import ImageSet
from veilset.methods import METHODS
from veilset.methods.base import Context, Method
from veilset.privacy.budget import Budget
from veilset.privacy.session import Session

_BUDGET = Budget(4.0, 1e-5)
_SIDE = 16
_SAMPLES = 12
NAMES = ("0", "1")


def plain(count: int = 30) -> Neighbours:
    """Random images of two classes, and one more."""
    records = toy_records(count + 1)
    return Neighbours(records=_part(records, 0, count), unit=_part(records, count, count + 1))


def duplicate() -> Neighbours:
    """The unit in question is a copy of another."""
    worlds = plain()
    return replace(worlds, unit=worlds.records.subset(np.array([3])), places=("middle",))


def white() -> Neighbours:
    """An image without any contrast, on which a division by its own spread would fail."""
    worlds = plain()
    unit = ImageSet(np.full_like(worlds.unit.images, 255), worlds.unit.labels, NAMES, may_lack_classes=True)
    return replace(worlds, unit=unit, places=("middle",))


def groups() -> Neighbours:
    """Groups of one to four images; the one in question has very many, of both classes."""
    sizes = np.array([1, 2, 3, 4] * 6)
    count = int(sizes.sum())
    records = toy_records(count + 90)
    owners = np.concatenate([np.repeat(np.arange(len(sizes)), sizes), np.full(90, 1000)])
    whole = ImageSet(records.images, records.labels, NAMES, owners, may_lack_classes=True)
    return Neighbours(records=_part(whole, 0, count), unit=_part(whole, count, count + 90), places=("middle",))


WORLDS = {"plain": plain, "duplicate": duplicate, "white": white, "groups": groups}


def toy_records(count: int) -> ImageSet:
    """Images of noise, brighter in class 1."""
    labels = np.arange(count) % 2
    images = numpy_generator(0, "audit/neighbours").integers(0, 120, (count, _SIDE, _SIDE, 1))
    return ImageSet((images + 120 * labels[:, None, None, None]).astype(np.uint8), labels, NAMES, may_lack_classes=True)


def method_neighbours(name: str, worlds: Neighbours) -> list[NeighbourSubject]:
    """The neighbour runs of a method, one for each form that is audited."""
    return [configured_neighbours(name, entry, worlds) for entry in AUDITS[name]]


def mechanism_neighbours(name: str) -> NeighbourSubject:
    """The neighbour run of a mechanism, on its own toys: the last record is the one in question."""
    subject = mechanism_subject(name, _BUDGET.epsilon)
    worlds = _worlds_of(subject)

    def spend(session: Session) -> None:
        subject.spend(session)

    return NeighbourSubject(name=name, plan=subject.plan, play=session_play(worlds, subject.plan, spend), worlds=worlds)


def configured_neighbours(name: str, entry: MethodAudit, worlds: Neighbours) -> NeighbourSubject:
    """The neighbour run of a method in one form."""

    def configured() -> Method:
        return METHODS.get(name).configure("fast", entry.settings)

    def spend(session: Session) -> Mapping[str, bytes]:
        method = configured()
        public = worlds.sealed(worlds.records).check_public(public_images()) if method.needs_public else None
        method.fit(session, public, Context())
        session.finish()
        return what_leaves(method)

    plan = configured().plan(worlds.facts, _BUDGET)
    return NeighbourSubject(
        name=f"{name}: {entry.form}", plan=plan, play=session_play(worlds, plan, spend), worlds=worlds
    )


def what_leaves(method: Method) -> dict[str, bytes]:
    """What a release would be made of."""
    samples = method.sample(_SAMPLES, 0)
    leaves = {"images": samples.images.tobytes(), "labels": samples.labels.tobytes()}
    if samples.soft_labels is not None:
        leaves["soft labels"] = samples.soft_labels.tobytes()
    for name, model in method.models().items():
        leaves |= {f"{name}: {key}": value.numpy().tobytes() for key, value in model.weights.items()}
        leaves[name] = repr(sorted(model.description.items())).encode()
    return leaves | {"warnings": "\n".join(method.warnings()).encode()}


def _worlds_of(subject: Subject) -> Neighbours:
    toys = subject.worlds
    whole = ImageSet(toys.images, toys.labels, toys.facts.class_names, toys.groups, may_lack_classes=True)
    in_question = 1 if toys.groups is None else int((toys.groups == toys.groups[-1]).sum())
    cut = len(whole) - in_question
    return Neighbours(records=_part(whole, 0, cut), unit=_part(whole, cut, len(whole)), declared=toys.declared)


def _part(records: ImageSet, start: int, stop: int) -> ImageSet:
    return records.subset(np.arange(start, stop))
