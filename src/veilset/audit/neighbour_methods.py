"""Every registered method and every mechanism in a neighbour run: their own code, whole, on toy records.

A method is here by being registered: in each form that is audited (`Method.forms`) or tried besides
(`Method.also_tried`), and in each of its presets with its smallest sizes laid over it. What leaves is what a release is
made of: samples, networks, warnings, the ledger, what the workspace keeps, and the fit as it is stored for other
machines.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from veilset.audit.game import Subject
from veilset.audit.mechanisms import mechanism_subject
from veilset.audit.methods import public_images
from veilset.audit.neighbours import Neighbours, NeighbourSubject, session_play
from veilset.audit.recorder import SPOKEN
from veilset.core.randomness import numpy_generator
from veilset.data.images import ImageSet
from veilset.methods import METHODS
from veilset.methods.base import AuditForm, Context, Fitted, Method
from veilset.methods.stored import store
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


def photographs(count: int = 12) -> Neighbours:
    """Images in colour, of a size at which teachers read pretrained features where these are installed."""
    records = toy_records(count + 1, side=24, channels=3)
    return Neighbours(
        records=_part(records, 0, count), unit=_part(records, count, count + 1), places=("first",), declared=1000
    )


def findings() -> Neighbours:
    """Images with any of three findings; the one in question has all of them, the longest row that there is."""
    records = _with_findings(toy_records(31))
    return Neighbours(records=_part(records, 0, 30), unit=_part(records, 30, 31), places=("first",))


def findings_in_groups() -> Neighbours:
    """The same in groups of two; the one in question has forty images."""
    records = _with_findings(toy_records(70))
    owners = np.concatenate([np.arange(30) // 2, np.full(40, 1000)])
    whole = ImageSet(records.images, records.labels, records.class_names, owners, may_lack_classes=True)
    return Neighbours(records=_part(whole, 0, 30), unit=_part(whole, 30, 70), places=("middle",))


WORLDS = {"plain": plain, "duplicate": duplicate, "white": white, "groups": groups}
FINDINGS_WORLDS = {"findings": findings, "findings in groups": findings_in_groups}
"""For methods that take several findings per image."""


def toy_records(count: int, side: int = _SIDE, channels: int = 1) -> ImageSet:
    """Images of noise, brighter in class 1."""
    labels = np.arange(count) % 2
    images = numpy_generator(0, "audit/neighbours").integers(0, 120, (count, side, side, channels))
    return ImageSet((images + 120 * labels[:, None, None, None]).astype(np.uint8), labels, NAMES, may_lack_classes=True)


def _with_findings(records: ImageSet) -> ImageSet:
    """The first finding is seen in the brightness; from row 30 on images have all three."""
    places = np.arange(len(records))
    matrix = np.stack([records.labels, places // 2 % 2, places // 4 % 2], axis=1)
    matrix[30:] = 1
    return ImageSet(records.images, matrix, ("A", "B", "C"), may_lack_classes=True)


def method_neighbours(name: str, worlds: Neighbours) -> list[NeighbourSubject]:
    """The neighbour runs of a method, one for each of its forms."""
    kind = METHODS.get(name)
    return [configured_neighbours(kind, "fast", entry.form, entry.settings, worlds) for entry in forms_of(kind)]


def forms_of(kind: type[Method]) -> tuple[AuditForm, ...]:
    """The forms of a method that a neighbour run tries: those that are audited, and others."""
    return (*kind.forms, *kind.also_tried)


def preset_neighbours(
    name: str, preset: str, worlds: Neighbours, settings: Mapping[str, Any] | None = None
) -> NeighbourSubject:
    """The neighbour run of a method with one of its presets, in the smallest sizes and with these settings."""
    kind = METHODS.get(name)
    return configured_neighbours(kind, preset, f"preset {preset}", {**kind.smallest, **(settings or {})}, worlds)


def mechanism_neighbours(name: str) -> NeighbourSubject:
    """The neighbour run of a mechanism, on its own toys: the last record is the one in question."""
    subject = mechanism_subject(name, _BUDGET.epsilon)
    worlds = _worlds_of(subject)

    def spend(session: Session) -> None:
        subject.spend(session)

    return NeighbourSubject(name=name, plan=subject.plan, play=session_play(worlds, subject.plan, spend), worlds=worlds)


def configured_neighbours(
    kind: type[Method], preset: str, form: str, settings: Mapping[str, Any], worlds: Neighbours
) -> NeighbourSubject:
    """The neighbour run of a method in one form."""
    method = kind.configure(preset, settings)
    plan = method.plan(worlds.facts, _BUDGET)

    def spend(session: Session) -> Mapping[str, bytes]:
        needs_public = method.needs_public or method.requires_public
        public = worlds.sealed(worlds.records).check_public(public_images()) if needs_public else None
        fitted = method.fit(plan, session, public, Context(progress=SPOKEN))
        session.finish()
        return what_leaves(fitted)

    return NeighbourSubject(
        name=f"{kind.name}: {form}", plan=plan, play=session_play(worlds, plan, spend), worlds=worlds
    )


def what_leaves(fitted: Fitted) -> dict[str, bytes]:
    """What a release would be made of."""
    samples = fitted.sample(_SAMPLES, 0)
    leaves = {"images": samples.images.tobytes(), "labels": samples.labels.tobytes()}
    if samples.soft_labels is not None:
        leaves["soft labels"] = samples.soft_labels.tobytes()
    for name, model in fitted.models().items():
        leaves |= {f"{name}: {key}": value.numpy().tobytes() for key, value in model.weights.items()}
        leaves[name] = repr(sorted(model.description.items())).encode()
    stored = store(fitted)  # what other machines draw from
    leaves |= {f"fitted {key}": value.numpy().tobytes() for key, value in stored.tensors.items()}
    leaves["fitted"] = json.dumps(stored.objects).encode()
    return leaves | {"warnings": "\n".join(fitted.warnings()).encode()}


def _worlds_of(subject: Subject) -> Neighbours:
    toys = subject.worlds
    whole = ImageSet(toys.images, toys.labels, toys.facts.class_names, toys.groups, may_lack_classes=True)
    in_question = 1 if toys.groups is None else int((toys.groups == toys.groups[-1]).sum())
    cut = len(whole) - in_question
    return Neighbours(records=_part(whole, 0, cut), unit=_part(whole, cut, len(whole)), declared=toys.declared)


def _part(records: ImageSet, start: int, stop: int) -> ImageSet:
    return records.subset(np.arange(start, stop))
