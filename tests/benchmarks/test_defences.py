"""Defences of the leakage benchmark, at toy size: what each is meant to do, never how well."""

from functools import partial

import numpy as np
import pytest
import torch

import defences
import leakage
import thesis_defences
from defences import Data
from veilset.data.images import ImageSet
from veilset.methods import METHODS
from veilset.training.classifier import predict

COUNT = 60


def images(seed: int) -> ImageSet:
    """Two classes that differ by brightness."""
    labels = np.arange(COUNT) % 2
    noise = np.random.default_rng(seed).integers(0, 150, (COUNT, 16, 16, 1))
    return ImageSet((noise + 100 * labels[:, None, None, None]).astype(np.uint8), labels)


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Data:
    for name in ("UNDEFENDED", "DISTILLED"):
        monkeypatch.setattr(defences, name, getattr(defences, name).changed(epochs=4))
    monkeypatch.setattr(defences, "WIDTH", 4)
    monkeypatch.setattr(thesis_defences, "EPOCHS_TRIED", (1, 4))
    return Data(members=images(0), public=images(1), reference=images(2))


@pytest.mark.parametrize("row", sorted(thesis_defences.ROWS))
def test_every_row_gives_a_network_that_answers_and_is_repeatable(row: str, data: Data) -> None:
    assert row in leakage.ROWS
    first, second = (predict(thesis_defences.ROWS[row](data, 3), data.members.images) for _ in range(2))
    assert first.shape == (COUNT, 2)
    assert np.isfinite(first).all()
    assert np.allclose(first, second, atol=1e-4)


def test_a_guard_keeps_every_label_and_makes_its_attacker_guess() -> None:
    """An attacker that calls those members whose largest probability is above .8."""
    attacker = torch.nn.Linear(3, 1).requires_grad_(False)
    attacker.weight.copy_(torch.tensor([[10.0, 0.0, 0.0]]))
    attacker.bias.fill_(-8.0)
    network = torch.nn.Flatten()
    guarded = thesis_defences.Guarded(network, attacker)
    before = 3 * torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        after = guarded(before)
    assert torch.equal(before.argmax(dim=1), after.argmax(dim=1))
    certainty = attacker(thesis_defences._sorted(after)).abs()
    assert float(certainty.max()) < 0.3
    assert float(attacker(thesis_defences._sorted(before)).abs().mean()) > 1


@pytest.mark.parametrize(
    ("make", "networks", "unseen_by"),
    [(partial(thesis_defences.cross_distillation, folds=5), 5, 1),
     (partial(thesis_defences.self_distillation, networks=10, left_out=4), 10, 4)],
)  # fmt: skip
def test_a_record_is_answered_for_by_networks_that_did_not_see_it(
    make: partial[torch.nn.Module], networks: int, unseen_by: int, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray] = []
    answered = np.zeros(COUNT, dtype=int)
    trained, asked = thesis_defences.train_classifier, thesis_defences.predict

    def places(part: np.ndarray) -> np.ndarray:
        return np.array([next(k for k in range(COUNT) if np.array_equal(data.members.images[k], one)) for one in part])

    def watch_training(network, pictures, labels, soft=None, **options):  # type: ignore[no-untyped-def]
        seen.append(places(pictures))
        if soft is not None:
            assert np.allclose(soft.sum(axis=1), 1, atol=1e-5)
        return trained(network, pictures, labels, soft, **options)

    def watch_answers(network, pictures):  # type: ignore[no-untyped-def]
        found = places(pictures)
        assert not set(found) & set(seen[-1])
        answered[found] += 1
        return asked(network, pictures)

    monkeypatch.setattr(thesis_defences, "train_classifier", watch_training)
    monkeypatch.setattr(thesis_defences, "predict", watch_answers)
    make(data, 0)
    assert len(seen) == networks + 1
    assert set(answered) == {unseen_by}
    assert len(seen[-1]) == COUNT  # the student sees every record, by answers of others


def test_dropout_is_off_when_the_network_answers(data: Data) -> None:
    network = thesis_defences.dropout(data, 0)
    assert any(isinstance(module, torch.nn.Dropout) for module in network.modules())
    assert np.array_equal(predict(network, data.members.images), predict(network, data.members.images))


def test_distillation_from_synthetic_images_sees_those_alone(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[ImageSet] = []

    def watch(given: Data, seed: int) -> torch.nn.Module:
        shown.append(given.public)
        return defences.fresh(given.members, seed)

    class Made:
        images, labels = images(5).images, images(5).labels

    monkeypatch.setattr(defences, "membership_privacy_distillation", watch)
    monkeypatch.setattr(thesis_defences, "run", lambda vault, job, workspace: Made)
    thesis_defences.synthetic_distillation(data, 0, epsilon=10.0, delta=1e-3)
    assert np.array_equal(shown[0].images, Made.images)


@pytest.mark.parametrize("row", [row for row in leakage.ROWS if row.startswith("pldk")])
def test_every_row_of_a_release_can_be_configured(row: str) -> None:
    published = row.startswith("pldk as published")
    METHODS.get("pldk").configure("default", leakage.settings_of(row), as_published=published)
    assert (leakage.epsilon_of(row) is None) == published
