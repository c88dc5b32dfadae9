"""What attacks find of a release: `options` are `attack`, its name, and `records`, how many members at most.

Privacy: reads private images, so its numbers are for the data holder and never part of a release.
"""

from typing import Any

import veilset.training  # noqa: F401  (thread settings, before torch)

from papers.cells import Cell  # isort: skip
from papers.data import private_and_scored  # isort: skip
from papers.utility import made  # isort: skip

from veilset.data.images import ImageSet
from veilset.evaluate.attacks import AttackConfig, Target, run_attacks
from veilset.evaluate.attacks.targets import release_target
from veilset.models import build_network
from veilset.training.classifier import train_classifier
from veilset.training.settings import TrainingConfig


def measure(cell: Cell, seed: int, *, validate: bool) -> dict[str, Any]:
    """The AUC of one attack as `value`, with its interval; .5 is guessing."""
    release, _, scored, about = made(cell, seed, validate=validate)
    private, _ = private_and_scored(cell.private, cell.units, validate=validate)
    recipe = TrainingConfig(**dict(cell.recipe)) if cell.recipe else None
    return {**_attacked(cell, release_target(release, recipe=recipe, seed=seed), private, scored, seed), **about}


def undefended(cell: Cell, seed: int, *, validate: bool) -> dict[str, Any]:
    """The same attack on a network that was trained on the private images themselves."""
    private, scored = private_and_scored(cell.private, cell.units, validate=validate)
    classes = len(private.class_names)
    network = build_network(cell.students[0], shape=private.shape, classes=classes, seed=seed)
    config = TrainingConfig(**dict(cell.recipe))
    train_classifier(network, private.images, private.labels, config=config, seed=seed)
    target = Target(description="undefended", classes=classes, network=network)
    return {**_attacked(cell, target, private, scored, seed), "n": len(private), "guarantee": "none"}


def _attacked(cell: Cell, target: Target, members: ImageSet, others: ImageSet, seed: int) -> dict[str, Any]:
    config = AttackConfig(records=int(cell.options.get("records", "2000")), seed=seed)
    (found,) = run_attacks(target, members, others, attacks=cell.options["attack"], config=config).results
    return {
        "metric": "auc",
        "value": round(found.auc.value, 3),
        "auc_interval": [round(end, 3) for end in found.auc.interval],
        "pairs": found.pairs,
        "attacked": target.description,
    }
