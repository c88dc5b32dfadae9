"""Networks without a release around them: a teacher by DP-SGD, four rules of clipping, and what real images teach.

`options` of `teacher` are those of `TeacherSettings`. Those of `clipped` are the network, the rule (flat, per_layer,
automatic, or signs, of which `keep` are kept), and its clip norm, batch, steps and learning rate.
"""

import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import veilset.training  # noqa: F401  (thread settings, before torch)

from papers.cells import Cell  # isort: skip
from papers.data import is_grouped, private_and_scored  # isort: skip
from papers.utility import DELTA  # isort: skip
from torch import nn  # isort: skip

from veilset.data.images import ImageSet
from veilset.dpsgd import PrivateTraining, train_private
from veilset.methods.base import Context
from veilset.models import build_network
from veilset.privacy.accounting import calibrate, epsilon_of
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan, sampling_rate_for
from veilset.privacy.ledger import Ledger
from veilset.privacy.noise import NoiseSource
from veilset.privacy.session import Session
from veilset.privacy.vault import Vault
from veilset.teachers.config import TeacherSettings
from veilset.teachers.fitting import train_teacher
from veilset.teachers.planning import plan_teacher
from veilset.training.classifier import predict, train_classifier
from veilset.training.settings import TrainingConfig

_BATCH, _STEPS, _RATE = 1024, 400, 0.2


def teacher(cell: Cell, seed: int, *, validate: bool) -> dict[str, Any]:
    """A teacher that spends the whole budget, as TeacherSettings describe it."""
    vault, scored = _opened(cell, validate=validate)
    asked: dict[str, Any] = dict(cell.options)
    planned = plan_teacher(vault.facts, Budget(cell.epsilon or 10.0, DELTA), TeacherSettings(**asked))
    processor = time.process_time()
    with _session(vault, planned.event, cell.epsilon) as session:
        made = train_teacher(session, planned, None, Context(seed=seed))
    return _line(cell, made.network, scored, processor, vault, planned.event)


def clipped(cell: Cell, seed: int, *, validate: bool) -> dict[str, Any]:
    """A network by DP-SGD under one of four rules of clipping."""
    vault, scored = _opened(cell, validate=validate)
    told: dict[str, Any] = dict(cell.options)
    rule = told.get("rule", "flat")
    batch = min(int(told.get("batch", _BATCH)), vault.facts.units)
    rate = sampling_rate_for(batch, vault.facts.units)

    def event(noise: float) -> Event:
        return Event(label="dp-sgd", noise_multiplier=noise, sampling_rate=rate, count=int(told.get("steps", _STEPS)))

    steps = event(calibrate(Budget(cell.epsilon or 10.0, DELTA), lambda noise: [event(noise)]))
    training = PrivateTraining(
        clip_norm=float(told.get("clip_norm", 1.0)),
        mode="flat" if rule == "signs" else rule,
        keep_signs=int(told["keep"]) if rule == "signs" else 0,
        learning_rate=float(told.get("learning_rate", _RATE)),
        average_from=0.7,
    )
    network = build_network(
        told.get("network", "convnet"), shape=vault.facts.shape, classes=vault.facts.classes, seed=seed
    )
    processor = time.process_time()
    with _session(vault, steps, cell.epsilon) as session:
        train_private(session, network, steps, training, seed=seed)
    return _line(cell, network.eval(), scored, processor, vault, steps)


def real(cell: Cell, seed: int, *, validate: bool) -> dict[str, Any]:
    """Students of the private images themselves: no guarantee, and what a release can be measured against."""
    private, scored = private_and_scored(cell.private, cell.units, validate=validate)
    students, processor = {}, time.process_time()
    for name in cell.students:
        network = build_network(name, shape=private.shape, classes=len(private.class_names), seed=seed)
        config = TrainingConfig(**dict(cell.recipe))
        train_classifier(network, private.images, private.labels, config=config, seed=seed)
        students[name] = scores(network, scored)
    return {
        "students": students,
        "metric": cell.metric,
        "value": students[cell.students[0]][cell.metric],
        "n": len(private),
        "guarantee": "none",
        "certified_epsilon": None,
        "cpu_seconds": round(time.process_time() - processor),
    }


def _opened(cell: Cell, *, validate: bool) -> tuple[Vault, ImageSet]:
    private, scored = private_and_scored(cell.private, cell.units, validate=validate)
    return Vault(private, unit="group" if is_grouped(cell.private) else "record"), scored


@contextmanager
def _session(vault: Vault, event: Event, epsilon: float | None) -> Iterator[Session]:
    """A session that pays for one event; its noise comes from the operating system."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "ledger.jsonl", {"run": "benchmark"})
        plan = Plan(budget=Budget(epsilon or 10.0, DELTA), events=(event,))
        session = Session(vault, plan, ledger, NoiseSource(), workspace=None)
        yield session
        session.finish()
        ledger.close()


def _line(
    cell: Cell, network: nn.Module, scored: ImageSet, processor: float, vault: Vault, event: Event
) -> dict[str, Any]:
    found = scores(network, scored)
    return {
        **found,
        "metric": cell.metric,
        "value": found[cell.metric],
        "n": vault.facts.units,
        "unit": vault.facts.unit,
        "guarantee": "dp",
        "certified_epsilon": round(epsilon_of([event], DELTA), 4),
        "delta": DELTA,
        "event": event.to_json(),
        "cpu_seconds": round(time.process_time() - processor),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def scores(network: nn.Module, scored: ImageSet) -> dict[str, float]:
    """Accuracy, and its mean over the classes, in percent."""
    right = predict(network, scored.images).argmax(axis=1) == scored.labels
    recalls = [right[scored.labels == label].mean() for label in np.unique(scored.labels)]
    return {
        "accuracy": round(100 * float(right.mean()), 2),
        "balanced_accuracy": round(100 * float(np.mean(recalls)), 2),
    }
