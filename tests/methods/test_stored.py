"""A fit as JSON and tensors: every method draws the same from it, and nothing private can be in it."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from veilset.core.errors import InputError, VeilsetError
from veilset.data.images import ImageSet
from veilset.methods import METHODS
from veilset.methods.base import Context, Fitted
from veilset.methods.merf.classifier import LinearClassifier
from veilset.methods.stored import StoredFit, restore, store
from veilset.pipeline.job import Job, draw
from veilset.privacy.account import Account
from veilset.privacy.noise import NoiseSource
from veilset.privacy.opening import opened
from veilset.privacy.vault import Vault


def toy(count: int, seed: int = 0) -> ImageSet:
    labels = np.arange(count) % 2
    images = np.random.default_rng(seed).integers(0, 120, (count, 16, 16, 1)) + 120 * labels[:, None, None, None]
    return ImageSet(images.astype(np.uint8), labels)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_what_is_restored_draws_the_same(name: str, tmp_path: Path) -> None:
    public = toy(60, 1) if METHODS.get(name).needs_public else None
    vault = Vault(toy(200))
    checked = None if public is None else vault.check_public(public)
    drawn = draw(Job(method=name, epsilon=8.0, preset="smoke"), vault.facts)
    account = Account(tmp_path / "account.sqlite")
    with opened(
        vault, drawn.plan, drawn.header, workspace=tmp_path / "run", account=account, noise=NoiseSource()
    ) as opening:
        context = Context(workspace=tmp_path / "run")
        fitted = drawn.method.fit(drawn.plan, opening.session, checked, context)
    stored = store(fitted)
    through_json = StoredFit(objects=json.loads(json.dumps(stored.objects)), tensors=stored.tensors)
    assert str(tmp_path) not in json.dumps(stored.objects), "no place on the custodian's disk"
    again = restore(through_json, public)
    first, second = fitted.sample(14, 5), again.sample(14, 5)
    assert np.array_equal(first.images, second.images)
    assert np.array_equal(first.labels, second.labels)
    assert first.soft_labels is None or np.array_equal(first.soft_labels, second.soft_labels)
    assert again.warnings() == fitted.warnings()


class Holding(Fitted):
    """A fit that holds something."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def sample(self, count: int, seed: int = 0) -> Any:
        raise NotImplementedError


Holding.__module__ = "veilset.methods.base"


@pytest.mark.parametrize(
    "held",
    [
        Vault(toy(10)),
        toy(10),
        [{"deep": (toy(10),)}],
        lambda: None,
        NoiseSource(),
        SimpleNamespace(rows=1),
        threading.Lock(),
        np.array([toy(10)], dtype=object),
    ],
    ids=["vault", "records", "deep records", "function", "noise", "foreign", "lock", "objects"],
)
def test_what_is_not_a_result_is_not_stored(held: Any) -> None:
    with pytest.raises(VeilsetError, match=r"not to be stored|cannot be stored"):
        store(Holding(held))


def stored_classifier() -> StoredFit:
    network = LinearClassifier(weight=torch.zeros(2, 2), bias=torch.zeros(2))
    return store(network)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"class": "veilset.privacy.vault:Vault"},
        {"class": "os:system"},
        {"class": "veilset.methods.stored:_Reader.made"},
        {"class": "veilset.methods.stored:Path"},
        {"is": "function", "name": "os:system"},
        {"is": "function", "name": "veilset.methods.stored:resolve"},
        {"is": "settings", "class": "veilset.core.files:write_whole"},
        {"is": "eval"},
        {"is": "dtype", "name": "load"},
        {"attributes": {"weight": {"number": 99}}},
        {"attributes": {"weight": {"number": "x"}}},
        {},
    ],
)
def test_a_stored_fit_makes_nothing_but_our_objects(change: dict[str, Any]) -> None:
    """The last is a sound object of ours which is nothing to draw from."""
    stored = stored_classifier()
    stored.objects[0].update(change)
    with pytest.raises(InputError, match="Not a stored fit"):
        restore(stored)


def test_hooks_are_numbered_by_their_network_alone() -> None:
    """torch counts the hooks of a whole process; what else ran there must not show in a stored fit."""

    def stored() -> list[Any]:
        network = torch.nn.Sequential(torch.nn.Linear(2, 2))
        network[0].register_forward_pre_hook(torch.nn.functional.relu)  # type: ignore[arg-type]
        return store(network).objects  # type: ignore[arg-type]

    assert stored() == stored()
